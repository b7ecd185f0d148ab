package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/rdmatransport/fault"
)

// leading is the number of calls of a kind, from the first one on, of which each fails in a run
// of its own. Programs make most calls of a kind at the same place.
const leading = 3

// statuses are the statuses with which completions fail in a sweep: a peer that no longer
// answers, a receive buffer that is too short, and a local error.
var statuses = map[string]string{"send": "RETRY_EXC_ERR", "write": "RETRY_EXC_ERR", "read": "RETRY_EXC_ERR", "atomic": "RETRY_EXC_ERR",
	"recv": "LOC_LEN_ERR", "local": "GENERAL_ERR"}

// plan returns the rules of a sweep: one for each run of the program. sites has how often each call
// was made in a run without faults, as of fault.Device.
func plan(sites map[string]uint64) (rules []string) {
	for _, site := range slices.Sorted(maps.Keys(sites)) {
		effect := ""
		if opcode, ok := strings.CutPrefix(site, "wc:opcode="); ok {
			effect = statuses[opcode]
		} else if errnos := fault.Errnos(site); len(errnos) > 0 {
			effect = errnos[0]
		}
		if effect == "" {
			continue
		}
		for _, n := range numbers(sites[site]) {
			rules = append(rules, fmt.Sprintf("%s=%s:%d", site, effect, n))
		}
	}
	if sites["post_send"] > 0 {
		rules = append(rules, "event:nth=1=QP_FATAL", "device:nth=1=gone")
	} else if sites["create_qp"] > 0 {
		rules = append(rules, "event:after=500ms=QP_FATAL", "device:after=500ms=gone")
	}
	for _, o := range []struct{ call, rule string }{{"rdma_resolve_addr", "cm=ADDR_ERROR"}, {"rdma_resolve_route", "cm=ROUTE_ERROR"},
		{"rdma_connect", "cm=REJECTED"}, {"rdma_connect", "cm=UNREACHABLE"}} {
		if sites[o.call] > 0 {
			rules = append(rules, o.rule)
		}
	}
	return rules
}

// numbers returns which of n calls fail.
func numbers(n uint64) (list []uint64) {
	for i := uint64(1); i <= min(n, leading); i++ {
		list = append(list, i)
	}
	if n > leading {
		list = append(list, n)
	}
	return list
}
