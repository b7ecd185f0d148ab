package metrics_test

import (
	"encoding/json"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/rdmatransport/metrics"
	"github.com/softrnic/softrnic/verbs"
)

// FuzzSnapshot: what a process says of its device may be anything. Its collector can be registered
// and gathered all the same.
func FuzzSnapshot(f *testing.F) {
	s := verbs.Snapshot{Device: "softrnic0", Ports: make([]verbs.PortSnapshot, 1), Counters: map[string]uint64{"sent_pkts": 1},
		Latencies: map[verbs.Transport]verbs.Latency{verbs.RoCEv2: {Count: 1, Classes: [24]uint64{1}}},
		QPKinds:   []verbs.QPKind{{Transport: verbs.RoCEv2, Type: verbs.RC, State: verbs.StateRTS, Count: 1}}}
	b, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"counters":{"no name":1,"":2}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s verbs.Snapshot
		if json.Unmarshal(b, &s) != nil {
			return
		}
		registry := prometheus.NewRegistry()
		if err := registry.Register(metrics.NewSnapshotCollector(s)); err != nil {
			t.Error(err)
		}
		_, _ = registry.Gather() // a metric may be there twice
	})
}
