package top

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/softrnic/softrnic/cmd/internal/status"
)

// FuzzTable: what processes say of their nodes may be anything but control characters, which status
// replaces. The table adds none but the ends of its lines.
func FuzzTable(f *testing.F) {
	node, err := json.Marshal(status.Node{PID: 4, Link: "pipe", Addrs: []string{"10.0.0.1"}, QPs: []status.QP{
		{Num: 1, Type: "RC", Transport: "RoCEv2", State: "RTS", Peer: "10.0.0.2", Counters: map[string]uint64{"sent_bytes": 1}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(node, node, 80)
	f.Add([]byte(`{"link":"[2J","qps":[{"state":"a b","counters":{"sent_bytes":5}}]}`), node, 40)
	f.Fuzz(func(t *testing.T, first, second []byte, width int) {
		for _, b := range [][]byte{first, second} {
			if bytes.ContainsRune(b, '\\') || bytes.ContainsFunc(b, unicode.IsControl) {
				return
			}
		}
		var before, now status.Node
		if json.Unmarshal(first, &before) != nil || json.Unmarshal(second, &now) != nil || width < 0 || width > 1000 {
			return
		}
		for _, nodes := range [][2]status.Node{{before, now}, {now, before}} {
			for line := range strings.SplitSeq(renderTable(nodes[:1], nodes[1:], width, 0), "\n") {
				if strings.ContainsFunc(line, unicode.IsControl) {
					t.Errorf("the line %q", line)
				}
			}
		}
	})
}
