package operations

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The runbook for a lost Vault leads from a fleet whose Vault is gone to one that signs
// again, with what was stopped after the last export still stopped and enrolment closed
// until somebody opens it. Its commands are run as they are written, but for addresses,
// names, and what a terminal would have asked.
func TestLostVaultRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbooks/lost-vault.md")
	if err != nil {
		t.Fatal(err)
	}
	_, todo, _ := strings.Cut(string(text), "## What to do")
	todo, _, _ = strings.Cut(todo, "## How to know")
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(todo, -1) {
		var lines []string
		for line := range strings.Lines(m[1]) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "kubectl ") {
				lines = append(lines, line)
			}
		}
		blocks = append(blocks, strings.Join(lines, "\n"))
	}
	if len(blocks) != 3 {
		t.Fatalf("the page has %d blocks of commands, want those that prepare Vault, make the deployment and import", len(blocks))
	}
	named := strings.NewReplacer(
		"https://vault.example.com:8200", "http://127.0.0.1:8200", "VAULT_TOKEN=TOKEN", "VAULT_TOKEN=root",
		"--accept-loss ID", `--accept-loss "$(pactctl state status | awk '$1 == "store" { print $2 }')" --yes`,
	)
	prepare, deploy, restore := named.Replace(blocks[0]), named.Replace(blocks[1]), named.Replace(blocks[2])
	for _, needs := range []string{"`vault kv list secret/pact-signer/documents`", "`pactctl kill status`", "`store.redis.prefix`", "`pactctl state open-enrolment`"} {
		if !strings.Contains(strings.Join(strings.Fields(todo), " "), needs) {
			t.Errorf("the page does not say %s, which this test does", needs)
		}
	}
	out := runScript(t, walkthrough(t, "fleet")+`
pactctl state export state.ndjson
pactctl kill --device hkwVu1nVfLNKQVkbX6JXbZBdeiNWcXFeSn-S4OVSOsM --reason "stolen since" --yes
running=($(jobs -p))                       # Vault, Redis and two replicas
kill ${running[0]}; wait ${running[0]} || true
vault server -dev -dev-root-token-id=root > vault2.log 2>&1 &
until VAULT_ADDR=http://127.0.0.1:8200 vault status > status.log; do sleep 1; done
mkdir old; mv role-id secret-id admin-token old
`+prepare+`
until vault kv list secret/pact-signer/documents | grep kill-switch; do sleep 1; done
until curl -s http://127.0.0.1:8790/readyz | grep "the deployment's record is gone from custody"; do sleep 1; done
curl -s http://127.0.0.1:8787/pact/sign -H "Authorization: Bearer $CREDENTIAL" -H 'Content-Type: application/json' \
  -d '{"audience": "aud-7f3a", "nonce": "3"}'
kill ${running[2]} ${running[3]}; wait ${running[2]} ${running[3]} || true
sed -i 's/redis: {/redis: {prefix: pact2, /' signer.yaml
`+deploy+`
signer serve --config signer.yaml > three.log 2>&1 &
until curl -sf http://127.0.0.1:8790/readyz; do sleep 1; done
`+restore+`
until curl -sf http://127.0.0.1:8790/readyz; do sleep 1; done
echo AFTERWARDS
pactctl kill status
pactctl state status
pactctl state open-enrolment
curl -sf http://127.0.0.1:8787/pact/sign -H "Authorization: Bearer $CREDENTIAL" -H 'Content-Type: application/json' \
  -d '{"audience": "aud-7f3a", "nonce": "4"}'
`)
	meanwhile, afterwards, _ := strings.Cut(out, "AFTERWARDS")
	if !strings.Contains(meanwhile, "the deployment's record is gone from custody") {
		t.Errorf("on an empty Vault it did not say so:\n%s", meanwhile)
	}
	if !strings.Contains(afterwards, "stolen since") {
		t.Errorf("what was stopped is not any more:\n%s", afterwards)
	}
	if !strings.Contains(afterwards, "closed, since the store was lost or went back") {
		t.Errorf("enrolment was not closed:\n%s", afterwards)
	}
	if tokens := tokensIn(out); len(tokens) != 3 || tokens[2].KeyID == tokens[0].KeyID {
		t.Errorf("%d tokens, want one of each replica and one by another key:\n%s", len(tokens), out)
	}
}
