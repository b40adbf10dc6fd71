// Package build tells what this binary was built from.
package build

import "runtime/debug"

// version is set at build time with
// -ldflags "-X github.com/pactsigner/pactsigner/internal/build.version=…".
var version string

// Version is the version that was set at build time, else the module's, else the
// commit's, else "dev".
func Version() string {
	if version != "" {
		return version
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
	revision = revision[:min(len(revision), 12)]
	if settings["vcs.modified"] == "true" {
		revision += "+dirty"
	}
	return revision
}
