package nldev

import (
	"encoding/json"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/verbs"
)

// FuzzAnswer: a program sends an arbitrary message, and a process says arbitrary things of its
// node. The answers are whole messages, which fit into rdma's buffer.
func FuzzAnswer(f *testing.F) {
	var first attributes
	first.u32(attrDevIndex, 0)
	r := request{seq: 1}
	node, err := json.Marshal(status.Node{PID: 4, GUID: "0011223344556678", Devices: []string{"mlx5_0", "siw0"},
		QPs: []status.QP{{Num: 1, Type: "RC", Transport: verbs.RoCEv2.String(), State: "RTS"}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, command := range []uint16{cmdGet, cmdPortGet, cmdSysGet, cmdResGet, cmdResQPGet, cmdStatGet} {
		f.Add(r.message(clientNLDEV<<10|command, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 0, first), node)
	}
	root := sysfs(f)
	f.Fuzz(func(t *testing.T, message, node []byte) {
		var n status.Node
		if json.Unmarshal(node, &n) != nil {
			return
		}
		s := &server{root, 1, func() ([]status.Node, error) { return []status.Node{n}, nil }}
		for _, m := range s.answer(message) {
			if len(m) > maxMessage || len(m) < headerSize || int(native.Uint32(m)) != len(m) {
				t.Fatalf("a message of %d bytes: % x", len(m), m[:min(len(m), headerSize)])
			}
			if a, ok := parse(m); ok && a.kind == clientNLDEV<<10|cmdResQPGet {
				_ = text(t, a.attrs)
			}
		}
	})
}
