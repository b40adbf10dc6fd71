package audit_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
)

// log makes a chain of entries.
func log(actions ...string) []audit.Entry {
	var list []audit.Entry
	head := ""
	for i, a := range actions {
		e := audit.Chain(uint64(i), head, audit.Entry{
			Time:  time.Unix(1795000000, 123456789).Add(time.Duration(i) * time.Second),
			Actor: "oncall", Action: a, Target: "x", Detail: map[string]string{"b": "2", "a": "1"},
		})
		head = e.Hash
		list = append(list, e)
	}
	return list
}

// verify returns how many entries fit, and why the next one does not.
func verify(list []audit.Entry) (uint64, error) {
	var v audit.Verifier
	for _, e := range list {
		if err := v.Add(e); err != nil {
			return v.Entries, err
		}
	}
	return v.Entries, nil
}

func TestChain(t *testing.T) {
	list := log("kill", "resume", "rotate")
	if n, err := verify(list); n != 3 || err != nil {
		t.Fatalf("a whole log: %d entries, %v", n, err)
	}
	// A log that went through JSON, as an export does, is still whole.
	var exported []audit.Entry
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &exported); err != nil {
		t.Fatal(err)
	}
	if n, err := verify(exported); n != 3 || err != nil {
		t.Fatalf("an exported log: %d entries, %v", n, err)
	}
}

func TestTampering(t *testing.T) {
	for name, change := range map[string]func([]audit.Entry) []audit.Entry{
		"content":   func(l []audit.Entry) []audit.Entry { l[1].Actor = "somebody"; return l },
		"detail":    func(l []audit.Entry) []audit.Entry { l[1].Detail["a"] = "3"; return l },
		"time":      func(l []audit.Entry) []audit.Entry { l[1].Time = l[1].Time.Add(time.Hour); return l },
		"left out":  func(l []audit.Entry) []audit.Entry { return append(l[:1], l[2]) },
		"swapped":   func(l []audit.Entry) []audit.Entry { l[0], l[1] = l[1], l[0]; return l },
		"hash":      func(l []audit.Entry) []audit.Entry { l[1].Hash = l[0].Hash; return l },
		"cut front": func(l []audit.Entry) []audit.Entry { return l[1:] },
		"made anew": func(l []audit.Entry) []audit.Entry {
			l[1] = audit.Chain(1, l[0].Hash, audit.Entry{Action: "nothing"})
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			if n, err := verify(change(log("kill", "resume", "rotate"))); !errors.Is(err, audit.ErrBroken) {
				t.Errorf("%d entries, %v: want ErrBroken", n, err)
			}
		})
	}
}

// A chain cannot tell that its newest entries are gone; recorded heads can.
func TestExpectedHeads(t *testing.T) {
	list := log("kill", "resume", "rotate")
	head := func(e audit.Entry) audit.Head { return audit.Head{Seq: e.Seq, Hash: e.Hash} }
	other := log("kill", "other", "rotate")
	for name, c := range map[string]struct {
		list  []audit.Entry
		heads []audit.Head
		ok    bool
	}{
		"whole":             {list, []audit.Head{head(list[2]), head(list[0]), {}}, true},
		"grown since":       {list, []audit.Head{head(list[1])}, true},
		"nothing expected":  {nil, []audit.Head{{}}, true},
		"tail gone":         {list[:2], []audit.Head{head(list[0]), head(list[2])}, false},
		"all gone":          {nil, []audit.Head{head(list[0])}, false},
		"another from 2 on": {other, []audit.Head{head(list[1])}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var v audit.Verifier
			v.Expect(c.heads...)
			var err error
			for _, e := range c.list {
				if err == nil {
					err = v.Add(e)
				}
			}
			if err == nil {
				err = v.End()
			}
			if (err == nil) != c.ok || err != nil && !errors.Is(err, audit.ErrBroken) {
				t.Error(err)
			}
		})
	}
}
