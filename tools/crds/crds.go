// Package crds keeps the modules in go.mod whose resource definitions charts are
// checked against.
package crds

import _ "sigs.k8s.io/gateway-api/apis/v1"
