package running

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/verbs/admission"
)

// TestLimits: Prometheus sees the limits of each server, and which of them were reached.
func TestLimits(t *testing.T) {
	limits := new(accept.Limits)
	limits.Add("test", func() admission.Stats { return admission.Stats{Places: 8, Held: 2, Refused: 5, Displaced: 47} })
	limits.Reached("test", "memory", func() uint64 { return 3 })
	err := testutil.CollectAndCompare(limitsCollector{limits}, strings.NewReader(`
# HELP softrnic_connection_places Connections that a server of the command may have.
# TYPE softrnic_connection_places gauge
softrnic_connection_places{server="test"} 8
# HELP softrnic_displaced_connections_total Connections without a valid message that were ended to make room for others.
# TYPE softrnic_displaced_connections_total counter
softrnic_displaced_connections_total{server="test"} 47
# HELP softrnic_held_connection_places Connections that it has, with those that are being set up.
# TYPE softrnic_held_connection_places gauge
softrnic_held_connection_places{server="test"} 2
# HELP softrnic_limit_reached_total What had to wait, or was refused, as the peer or all had as much as they may, by what it is.
# TYPE softrnic_limit_reached_total counter
softrnic_limit_reached_total{limit="memory",server="test"} 3
# HELP softrnic_refused_connections_total Connections that were refused, because the peer or all had as many as they may.
# TYPE softrnic_refused_connections_total counter
softrnic_refused_connections_total{server="test"} 5
`))
	if err != nil {
		t.Error(err)
	}
}
