// Package build tells what this binary was built from.
package build

import (
	"runtime/debug"
	"strings"
)

// version and revision, the commit and "-dirty" if there is more than it, are set at
// build time with -ldflags "-X github.com/pactsigner/pactsigner/internal/build.version=…".
// The Dockerfile does that: an image is built without the repository.
var version, revision string

// Version is the version that was set at build time, else the module's, else the
// commit's, else "dev".
func Version() string {
	if version != "" {
		return version
	}
	if revision != "" {
		commit, dirty := strings.CutSuffix(revision, "-dirty")
		return short(commit, dirty)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	return of(info)
}

// of is the version that the toolchain wrote into the binary.
func of(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return "dev"
	}
	return short(revision, settings["vcs.modified"] == "true")
}

// short is a commit as people name it.
func short(commit string, dirty bool) string {
	commit = commit[:min(len(commit), 12)]
	if dirty {
		commit += "+dirty"
	}
	return commit
}
