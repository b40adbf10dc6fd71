package build

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	vcs := debug.BuildSetting{Key: "vcs.revision", Value: "8f7ca18aa0e3b4d7a0b7c5f1d2e3f4a5b6c7d8e9"}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3":             {Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{vcs}},
		"8f7ca18aa0e3":       {Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{vcs}},
		"8f7ca18aa0e3+dirty": {Settings: []debug.BuildSetting{vcs, {Key: "vcs.modified", Value: "true"}}},
		"dev":                {Main: debug.Module{Version: "(devel)"}},
	} {
		if got := of(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	defer func() { version, revision = "", "" }()
	for set, want := range map[string]string{
		"8f7ca18aa0e3b4d7a0b7c5f1d2e3f4a5b6c7d8e9":       "8f7ca18aa0e3",
		"8f7ca18aa0e3b4d7a0b7c5f1d2e3f4a5b6c7d8e9-dirty": "8f7ca18aa0e3+dirty",
	} {
		if revision = set; Version() != want {
			t.Errorf("got %q, want %q", Version(), want)
		}
	}
	version = "v9"
	if got := Version(); got != "v9" {
		t.Errorf("got %q", got)
	}
}
