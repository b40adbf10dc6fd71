package deploy

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// Every pod has one policy for both directions. A port of a Service is open to those
// that values name and to nobody else, and the way out is to what the configuration
// names.
func TestNetworkPolicies(t *testing.T) {
	each(t, func(t *testing.T, v variant, all objects) {
		policies := all.of("NetworkPolicy")
		if v.name == "everything off" {
			if len(policies) != 0 {
				t.Error("policies are there")
			}
			return
		}
		for _, p := range all.pods() {
			var of objects
			for _, policy := range policies {
				if selects(at(policy, "spec", "podSelector"), p.labels) {
					of = append(of, policy)
				}
			}
			if len(of) != 1 || fmt.Sprint(list(of[0], "spec", "policyTypes")) != "[Ingress Egress]" {
				t.Errorf("%s has %d policies of both directions, not one", p.of.kindName(), len(of))
				continue
			}
			name := of[0].kindName()
			var ports []any
			for _, p := range all.pods() {
				if selects(at(of[0], "spec", "podSelector"), p.labels) {
					ports = append(ports, slices.Collect(maps.Values(p.ports()))...)
				}
			}
			for _, rule := range list(of[0], "spec", "ingress") {
				if len(list(rule, "from")) == 0 || len(list(rule, "ports")) == 0 {
					t.Errorf("%s lets everybody in: %v", name, rule)
				}
				for _, port := range list(rule, "ports") {
					if !slices.Contains(ports, at(port, "port")) {
						t.Errorf("%s opens port %v, which no pod of it has", name, at(port, "port"))
					}
				}
			}
			if p.labels["app.kubernetes.io/component"] != "signer" && at(of[0], "spec", "egress") == nil {
				t.Errorf("%s goes nowhere", name)
			}
			for _, rule := range list(of[0], "spec", "egress") {
				if len(list(rule, "ports")) == 0 {
					t.Errorf("%s lets everything out: %v", name, rule)
				}
			}
		}
		// init is for nobody.
		if p := all.get("NetworkPolicy", "pact-signer-init"); p != nil && at(p, "spec", "ingress") != nil {
			t.Errorf("%s lets somebody in", p.kindName())
		}
	})
}

// access says who reaches a signer's port, as the policies have it, and where it may go.
func access(all objects) (in, out []string) {
	policy := all.get("NetworkPolicy", "pact-signer")
	for _, rule := range list(policy, "spec", "ingress") {
		for _, port := range list(rule, "ports") {
			in = append(in, fmt.Sprint(at(port, "port"), " ", list(rule, "from")))
		}
	}
	for _, rule := range list(policy, "spec", "egress") {
		for _, port := range list(rule, "ports") {
			out = append(out, fmt.Sprint(at(port, "protocol"), " ", at(port, "port"), " ", list(rule, "to")))
		}
	}
	return in, out
}

func TestWhoReachesWhat(t *testing.T) {
	const (
		probers  = "map[podSelector:map[matchExpressions:[map[key:app.kubernetes.io/component operator:In values:[probe test]]] matchLabels:map[app.kubernetes.io/instance:pact-signer app.kubernetes.io/name:pact-signer]]]"
		ns       = "map[namespaceSelector:map[matchLabels:map[kubernetes.io/metadata.name:%s]]]"
		dns      = "kube-system"
		redisTCP = "TCP 6379 []"
	)
	namespace := func(name string) string { return fmt.Sprintf(ns, name) }
	for _, c := range []struct {
		of      variant
		in, out []string
	}{
		{trial, []string{"8787 [" + probers + "]"}, []string{"UDP 53 [" + namespace(dns) + "]", "TCP 53 [" + namespace(dns) + "]"}},
		{bare, []string{"8787 [" + probers + "]"}, []string{
			"UDP 53 [" + namespace(dns) + "]", "TCP 53 [" + namespace(dns) + "]", "TCP 8200 []", redisTCP}},
		{production.with("", "config.tracing.endpoint=otel:4318", "networkPolicy.ingress.admin[0].ipBlock.cidr=10.1.0.0/16"), []string{
			"8787 [" + namespace("ingress-nginx") + " " + probers + "]",
			"8788 [" + namespace("ingress-nginx") + " " + probers + "]",
			"8789 [map[ipBlock:map[cidr:10.1.0.0/16]]]",
			"8790 [" + namespace("monitoring") + "]",
		}, []string{
			"UDP 53 [" + namespace(dns) + "]", "TCP 53 [" + namespace(dns) + "]",
			"TCP 8200 [" + namespace("vault") + "]",
			"TCP 26379 [" + namespace("redis") + "]", "TCP 6379 [" + namespace("redis") + "]",
			"TCP 4318 []",
		}},
		{bare.with("registers", "networkPolicy.egress.providers.to[0].ipBlock.cidr=0.0.0.0/0"), []string{"8787 [" + probers + "]"}, []string{
			"UDP 53 [" + namespace(dns) + "]", "TCP 53 [" + namespace(dns) + "]", "TCP 8200 []", redisTCP,
			"TCP 443 [map[ipBlock:map[cidr:0.0.0.0/0]]]"}},
	} {
		in, out := access(render(t, c.of))
		if !slices.Equal(in, c.in) {
			t.Errorf("%s: in:\n%q\nwant\n%q", c.of.name, in, c.in)
		}
		if !slices.Equal(out, c.out) {
			t.Errorf("%s: out:\n%q\nwant\n%q", c.of.name, out, c.out)
		}
	}
}
