package metrics

import (
	"runtime/debug"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestBuildOf checks the version of the module as installed, as built from a checkout, and as a
// dependency of another program.
func TestBuildOf(t *testing.T) {
	for _, c := range []struct {
		info              *debug.BuildInfo
		version, revision string
	}{
		{nil, "(devel)", ""},
		{&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v0.1.0"}}, "v0.1.0", ""},
		{&debug.BuildInfo{Main: debug.Module{Path: module}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}},
			"(devel)", "abc"},
		{&debug.BuildInfo{Main: debug.Module{Path: "x", Version: "v9.0.0"}, Deps: []*debug.Module{{Path: "y", Version: "v1.0.0"},
			{Path: module, Version: "v0.1.0"}}}, "v0.1.0", ""},
		{&debug.BuildInfo{Main: debug.Module{Path: "x", Version: "v9.0.0"}}, "(devel)", ""},
	} {
		if version, revision := buildOf(c.info); version != c.version || revision != c.revision {
			t.Errorf("%+v: %q, %q; want %q, %q", c.info, version, revision, c.version, c.revision)
		}
	}
	r := prometheus.NewRegistry()
	r.MustRegister(NewBuildInfoCollector())
	all, err := r.Gather()
	if err != nil || len(all) != 1 || all[0].GetName() != "softrnic_build_info" || len(all[0].GetMetric()[0].GetLabel()) != 3 {
		t.Errorf("metrics %v, %v", all, err)
	}
}
