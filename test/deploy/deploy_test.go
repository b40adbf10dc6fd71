// Package deploy holds what is in deploy/ to what it is for: the Helm chart, its
// alerts and dashboard, and the runbooks that belong to them.
package deploy

import "flag"

// update writes golden files anew, and what is generated.
var update = flag.Bool("update", false, "write golden and generated files anew")

// chart is the Helm chart.
const chart = "../../deploy/helm/pact-signer"
