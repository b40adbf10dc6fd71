package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// parts are the table's parts, in its order.
var parts = []struct {
	name string
	run  func(*bench, options) []row
}{
	{"bolt", func(b *bench, o options) []row { return signing(b, o, setup{"local", "bolt", 1, false}, 33, 18) }},
	{"redis", func(b *bench, o options) []row { return signing(b, o, setup{"local", "redis", 1, false}, 22, 0) }},
	{"vault", func(b *bench, o options) []row {
		return append(coalescing(b, o, true, 3), coalescing(b, o, false, 1.7)...)
	}},
	{"overhead", overhead},
	{"jwks", keySets},
	{"cpu", processorTime},
	{"scale", scaleOut},
	{"devices", manyDevices},
}

func rowNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// describe is the detail of a run.
func describe(r result) string {
	s := fmt.Sprintf("%.0f/s, p50 %s, p99 %s, p99.9 %s", r.perSecond(), ms(r.quantile(.5)), ms(r.quantile(.99)), ms(r.quantile(.999)))
	for status, n := range r.Statuses {
		if status != 200 {
			s += fmt.Sprintf(", %d× %d", n, status)
		}
	}
	return s
}

func ms(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 2, 64) + " ms" }

func percent(part, whole float64) string { return fmt.Sprintf("%.0f %%", 100*part/whole) }

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// warmUp is what is thrown away before something is measured.
const warmUp = time.Second

// signing measures credentials and devices over REST against raw signatures,
// taken before and after.
func signing(b *bench, o options, s setup, goalCredential, goalDevice float64) []row {
	w := start(b, s)
	closed(w.dials(o.connections, w.credentials()), warmUp)
	raw := rawSignatures(o.duration / 2)
	credential := closed(w.dials(o.connections, w.credentials()), o.duration)
	raw = (raw + rawSignatures(o.duration/2)) / 2
	rows := []row{against(fmt.Sprintf("sign over REST, credential, %s, %s custody", s.Store, s.Custody), credential, raw, goalCredential)}

	// Made beforehand, and for less than a minute: as many as could be asked.
	most := min(int(credential.perSecond()*o.duration.Seconds()), 200_000)
	requests := w.devices(most, 100)
	device := closed(w.dials(o.connections, requests), o.duration)
	rows = append(rows, against(fmt.Sprintf("sign over REST, device, %s, %s custody", s.Store, s.Custody), device, raw, goalDevice))
	grpcCalls, conns, err := rpc(w.Replicas[0].GRPC, w.host(), audience, o.connections, func() string { return "Bearer " + w.credential.Credential })
	if err != nil {
		b.Fatalf("%v", err)
	}
	defer conns.Close()
	return append(rows, against(fmt.Sprintf("sign over gRPC, credential, %s, %s custody", s.Store, s.Custody), closed(grpcCalls, o.duration), raw, 0))
}

// against is a row on raw signatures; goal is in percent, 0 for none.
func against(what string, r result, raw, goal float64) row {
	out := row{What: what, Value: percent(r.perSecond(), raw) + " of raw ES256", Detail: describe(r) + fmt.Sprintf("; raw %.0f/s", raw)}
	if goal > 0 {
		out.Goal = fmt.Sprintf("≥ %.0f %%", goal)
		out.Held = held(100*r.perSecond()/raw >= goal)
	}
	return out
}

// coalescing measures signing with Vault transit against one transit/sign for each
// token on the same Vault, by 256 callers.
func coalescing(b *bench, o options, audit bool, goal float64) []row {
	const callers = 256
	w := start(b, setup{"vault", "bolt", 1, audit})
	signers := w.dials(callers, w.credentials())
	closed(signers, warmUp)
	name, ok := w.signingKey()
	if !ok {
		b.Fatalf("no transit key in Vault")
	}
	_, addr, _ := strings.Cut(w.vault.Addr, "://")
	digest := base64.StdEncoding.EncodeToString(make([]byte, 32))
	body := fmt.Sprintf(`{"input":"%s","prehashed":true,"hash_algorithm":"sha2-256","marshaling_algorithm":"jws","key_version":1}`, digest)
	one := fmt.Appendf(nil, "POST /v1/transit/sign/%s HTTP/1.1\r\nHost: %s\r\nX-Vault-Token: %s\r\nX-Vault-Request: true\r\nContent-Length: %d\r\n\r\n%s",
		name, addr, w.vault.RootToken, len(body), body)
	baseline := make([]call, callers)
	for i := range baseline {
		baseline[i] = dial(addr, same(one))
	}
	closed(baseline, warmUp)
	single := closed(baseline, o.duration/2)
	ours := closed(signers, o.duration)
	again := closed(baseline, o.duration/2)
	base := (single.perSecond() + again.perSecond()) / 2
	words := "off"
	if audit {
		words = "on"
	}
	ratio := ours.perSecond() / base
	return []row{{
		What: "sign over REST, Vault transit, 256 callers, audit device " + words, Goal: fmt.Sprintf("≥ %.1f × one transit/sign per token", goal),
		Value: fmt.Sprintf("%.1f ×", ratio), Held: held(ratio >= goal),
		Detail: describe(ours) + fmt.Sprintf("; one transit/sign per token %.0f/s (%s)", base, describe(single)),
	}}
}

// signingKey finds the transit key that the fleet signs with.
func (w *world) signingKey() (string, bool) {
	list, err := w.vault.Client().Logical().ListWithContext(w.b.ctx, "transit/keys")
	if err != nil || list == nil {
		return "", false
	}
	keys, _ := list.Data["keys"].([]any)
	for _, k := range keys {
		if name, _ := k.(string); strings.HasSuffix(name, "-1") {
			return name, true
		}
	}
	return "", false
}

// overhead measures what the signer adds to Vault's own time, for each request of
// an open loop.
func overhead(b *bench, o options) []row {
	w := start(b, setup{"vault", "bolt", 1, false})
	workers := w.dials(o.connections, w.credentials())
	open(workers, 100, warmUp, nil)
	w.vaultCalls.take()
	var (
		mu    sync.Mutex
		asked []span
	)
	r := open(workers, 100, max(o.duration, 10*time.Second), func(s span) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, s)
	})
	// An exchange is noted when the connection's next one begins: one round more.
	open(workers, 100, time.Second, nil)
	calls := w.vaultCalls.take()
	var added result
	unmatched := 0
	for _, request := range asked {
		var own time.Duration
		for _, c := range calls {
			if !c.from.Before(request.from) && !c.to.After(request.to) {
				own = max(own, c.to.Sub(c.from))
			}
		}
		if own == 0 {
			unmatched++
			continue
		}
		added.Latencies = append(added.Latencies, request.to.Sub(request.from)-own)
	}
	sortDurations(added.Latencies)
	p99 := added.quantile(.99)
	return []row{{
		What: "request time − Vault call time, 100/s open loop", Goal: "p99 ≤ 1 ms", Value: "p99 " + ms(p99),
		Held:   held(p99 <= time.Millisecond && unmatched*100 < len(asked)),
		Detail: fmt.Sprintf("added p50 %s, p99.9 %s; whole request: %s; %d of %d requests not matched", ms(added.quantile(.5)), ms(added.quantile(.999)), describe(r), unmatched, len(asked)),
	}}
}

// keySets measures the JWKS against a bare handler of net/http in a process of its
// own that writes the same bytes and headers.
func keySets(b *bench, o options) []row {
	w := start(b, setup{"local", "bolt", 1, false})
	request := get(w.host(), "/.well-known/jwks.json")
	conn, err := net.Dial("tcp", w.Replicas[0].Public)
	if err != nil {
		b.Fatalf("%v", err)
	}
	defer conn.Close()
	conn.Write(request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.Fatalf("%v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatalf("%v", err)
	}
	bare := startBare(b, resp.Header, body)
	ours := w.dials(o.connections, same(request))
	theirs := make([]call, o.connections)
	for i := range theirs {
		theirs[i] = dial(bare, same(request))
	}
	closed(ours, warmUp)
	closed(theirs, warmUp)
	var mine, other float64
	var last result
	const rounds = 4
	for range rounds { // in turn: the machine's pace changes
		other += closed(theirs, o.duration/rounds).perSecond()
		last = closed(ours, o.duration/rounds)
		mine += last.perSecond()
	}
	return []row{{
		What: "JWKS", Goal: "≥ 90 % of a bare net/http handler", Value: percent(mine, other), Held: held(mine >= .9*other),
		Detail: describe(last) + fmt.Sprintf("; bare %.0f/s", other/rounds),
	}}
}

// bareHandler is set in the environment of the process that is the baseline.
const bareHandler = "PACT_LOAD_BARE"

// bareAnswer is what it answers.
type bareAnswer struct {
	Header http.Header
	Body   []byte
}

func init() {
	file := os.Getenv(bareHandler)
	if file == "" {
		return
	}
	data, err := os.ReadFile(file)
	var a bareAnswer
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	l, listenErr := net.Listen("tcp", "127.0.0.1:0")
	if err != nil || listenErr != nil {
		fmt.Fprintln(os.Stderr, err, listenErr)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	a.Header.Del("Date")
	http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range a.Header {
			w.Header()[name] = values
		}
		w.Write(a.Body)
	}))
}

// scaleOut measures 1, 2 and 3 signers on one Redis, and Redis' commands for each
// token.
func scaleOut(b *bench, o options) []row {
	var rows []row
	var alone float64
	for n := 1; n <= 3; n++ {
		inner := &bench{ctx: b.ctx}
		func() {
			defer inner.close()
			w := start(inner, setup{"wrapped", "redis", n, false})
			workers := w.dials(o.connections, w.credentials())
			closed(workers, warmUp)
			before := w.scripts()
			r := closed(workers, o.duration)
			each := float64(w.scripts()-before) / float64(max(len(r.Latencies), 1))
			if n == 1 {
				alone = r.perSecond()
			}
			rows = append(rows, row{
				What: fmt.Sprintf("%d signer(s) on one Redis, all on the same %d cores", n, runtime.NumCPU()), Goal: "1 Redis command per sign",
				Value: fmt.Sprintf("%.3f commands per sign", each), Held: held(each < 1.05), // a beat a second comes on top
				Detail: describe(r) + fmt.Sprintf("; %.2f × one signer", r.perSecond()/alone),
			})
		}()
	}
	return rows
}

// scripts is how many scripts Redis was asked to run.
func (w *world) scripts() int {
	info, _ := w.redis.Do("INFO", "commandstats").(string)
	total := 0
	for line := range strings.Lines(info) {
		for _, name := range []string{"cmdstat_evalsha:calls=", "cmdstat_eval:calls=", "cmdstat_fcall:calls="} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				digits, _, _ := strings.Cut(rest, ",")
				n, err := strconv.Atoi(digits)
				if err != nil {
					w.b.Fatalf("INFO commandstats: %v", err)
				}
				total += n
			}
		}
	}
	return total
}

// single is a run of one's own.
func single(b *bench, o options) []row {
	w := start(b, o.setup)
	raw := rawSignatures(o.duration / 2)
	n := int(max(raw*o.duration.Seconds()/2, o.rate*o.duration.Seconds()))
	var workers []call
	switch {
	case o.face == "rest" && o.caller == "credential":
		workers = w.dials(o.connections, w.credentials())
	case o.face == "rest" && o.caller == "device":
		workers = w.dials(o.connections, w.devices(min(n, 200_000), 100))
	case o.face == "grpc":
		next := func() string { return "Bearer " + w.credential.Credential }
		if o.caller == "device" {
			next = oneByOneText(w.assertions(min(n, 200_000), 100))
		}
		for i, r := range w.Replicas {
			calls, conns, err := rpc(r.GRPC, w.host(), audience, o.connections/len(w.Replicas)+min(i, 1), next)
			if err != nil {
				b.Fatalf("%v", err)
			}
			b.Cleanup(func() { conns.Close() })
			workers = append(workers, calls...)
		}
	default:
		b.Fatalf("-face is rest or grpc, -caller is credential or device")
	}
	var r result
	switch o.loop {
	case "closed":
		r = closed(workers, o.duration)
	case "open":
		r = open(workers, o.rate, o.duration, nil)
	default:
		b.Fatalf("-loop is closed or open")
	}
	what := fmt.Sprintf("%s loop, %s, %s, %s custody, %s, %d signer(s)", o.loop, o.face, o.caller, o.Custody, o.Store, o.Replicas)
	return []row{against(what, r, raw, 0)}
}

func oneByOneText(list []string) func() string {
	data := make([][]byte, len(list))
	for i, s := range list {
		data[i] = []byte(s)
	}
	next := oneByOne(data)
	return func() string { return string(next()) }
}

// parallel calls f for 0 to n-1 on all cores.
func parallel(n int, f func(i int)) { parallelBy(runtime.GOMAXPROCS(0), n, f) }

// parallelBy does it with so many at a time.
func parallelBy(workers, n int, f func(i int)) {
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	running.Wait()
}
