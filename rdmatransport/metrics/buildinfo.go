package metrics

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

const module = "github.com/softrnic/softrnic"

// NewBuildInfoCollector returns a collector of softrnic_build_info, which is 1. Its labels are the
// version of SoftRNIC in this program, the revision of the checkout that the program was built
// from, if any, and the version of Go.
func NewBuildInfoCollector() prometheus.Collector {
	info, _ := debug.ReadBuildInfo()
	version, revision := buildOf(info)
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "softrnic_build_info", Help: "The build of SoftRNIC: always 1.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

// buildOf returns the version of this module in a program, and the revision of the program if it is
// this module's own.
func buildOf(info *debug.BuildInfo) (version, revision string) {
	version = "(devel)"
	if info == nil {
		return version, ""
	}
	if info.Main.Path != module {
		for _, d := range info.Deps {
			if d.Path == module {
				return d.Version, ""
			}
		}
		return version, ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	return version, revision
}
