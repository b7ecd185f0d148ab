//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// perftest is one of perftest's tools with its options, and the minimum number of bytes that cross
// the link.
type perftest struct {
	args  string
	bytes uint64
}

// perftests are the tools with the options that are always tested.
var perftests = []perftest{
	{"ib_write_bw -n 500", 500 * 65536},
	{"ib_write_bw -n 500 -q 4 -b", 2000 * 65536},
	{"ib_write_bw -n 500 -c UC --report_gbits", 500 * 65536},
	{"ib_write_lat -n 500", 500 * 2},
	{"ib_send_bw -n 500", 500 * 65536},
	{"ib_send_bw -n 100 -s 1024 -c UD", 100 * 1024},
	{"ib_send_lat -n 500 -e", 500 * 2},
	{"ib_read_bw -n 500", 500 * 65536},
	{"ib_read_lat -n 500", 500 * 2},
	{"ib_atomic_bw -n 500", 500 * 8},
	{"ib_atomic_lat -n 500", 500 * 8},
}

// perftestsOverCM are those that are always tested with -R. On a busy machine ib_send_bw -e may
// wait for ever: without a credit of its peer it does not post the last request, and then it sleeps
// until a completion comes, although no other request has one.
var perftestsOverCM = []perftest{
	{"ib_write_bw -n 500", 500 * 65536},
	{"ib_write_bw -n 500 -q 4", 2000 * 65536},
	{"ib_write_lat -n 500", 500 * 2},
	{"ib_send_bw -n 500", 500 * 65536},
	{"ib_send_lat -n 500 -e", 500 * 2},
	{"ib_read_bw -n 500", 500 * 65536},
	{"ib_read_lat -n 500", 500 * 2},
	{"ib_atomic_bw -n 500", 500 * 8},
}

// allPerftests returns the tools with each of their options. WRITE has no events. The latency tests
// have one QP, one direction and no choice of units, and atomic operations have one size.
// ib_send_bw waits for every message without a timeout. With UC and UD it does not wait for the
// receiver, so over sockets the messages must fit into a socket's buffer.
func allPerftests() (list []perftest) {
	const sizes = 8 << 20 // the largest of -a
	for _, tool := range []struct {
		name    string
		options []string
		bytes   uint64 // of a message
	}{
		{"ib_write_bw", []string{"", "-a", "-q 4", "-b", "--report_gbits", "-c UC", "-c UC -a", "-c UC -q 4 -b"}, 65536},
		{"ib_read_bw", []string{"", "-e", "-a", "-q 4", "-b", "--report_gbits", "-q 4 -b -e"}, 65536},
		{"ib_send_bw", []string{"", "-e", "-a", "-q 4", "-b", "--report_gbits", "-c UC", "-c UC -b -e", "-c UD", "-c UD -e", "-c UD -q 4",
			"-c UD -a", "-c UD -b"}, 65536},
		{"ib_atomic_bw", []string{"", "-e", "-q 4", "-b", "--report_gbits", "-A CMP_AND_SWAP"}, 8},
		{"ib_write_lat", []string{"", "-a", "-c UC"}, 2},
		{"ib_read_lat", []string{"", "-e", "-a"}, 2},
		{"ib_send_lat", []string{"", "-e", "-a", "-c UC", "-c UC -e", "-c UD", "-c UD -e"}, 2},
		{"ib_atomic_lat", []string{"", "-e"}, 8},
	} {
		for _, options := range tool.options {
			n, bytes := uint64(500), tool.bytes
			unanswered := tool.name == "ib_send_bw" && strings.Contains(options, "-c U")
			switch {
			case unanswered && strings.Contains(options, "-a"):
				n, bytes = 20, 1024 // the largest of UD
			case unanswered:
				n, bytes, options = 100, 1024, "-s 1024 "+options
			case strings.Contains(options, "-a"):
				n, bytes = 20, sizes
			}
			list = append(list, perftest{strings.TrimSpace(fmt.Sprintf("%s -n %d %s", tool.name, n, options)), n * bytes})
		}
	}
	return list
}

// withAll adds allPerftests in the long run.
func withAll(always []perftest) []perftest {
	list := slices.Clone(always)
	if os.Getenv("SOFTRNIC_LONG") == "" {
		return list
	}
	for _, p := range allPerftests() {
		if !slices.ContainsFunc(list, func(other perftest) bool { return other.args == p.args }) {
			list = append(list, p)
		}
	}
	return list
}

// roceOnly reports whether the options use features that iWARP lacks.
func (p perftest) roceOnly() bool { return strings.Contains(p.args, "-c U") }

// TestPerftest runs perftest's tools, which exchange their QPs over TCP.
func TestPerftest(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	build(t)
	for i, p := range withAll(perftests) {
		for j, link := range links {
			if !turn(i, j, len(links)) {
				continue
			}
			t.Run(link.link+" "+p.args, func(t *testing.T) {
				programs.Ran(t, p.args, link.name()+" (RoCEv2)")
				ctx, cancel := context.WithTimeout(t.Context(), patience())
				defer cancel()
				server, client := link.pair(t)
				freePort++
				args := append(strings.Fields(p.args), "-d", "softrnic0", "-x", "1", "-F", "-p", fmt.Sprint(freePort))
				said := run(t, server.program(ctx, t, args[0], args[1:]...),
					client.program(ctx, t, args[0], append(args[1:], "127.0.0.1")...), freePort)
				counted := client.counted(t)
				if sum := 4 * (counted["port_xmit_data"] + counted["port_rcv_data"]); sum < p.bytes {
					t.Errorf("the client's device carried %d bytes, want %d at least\n%s", sum, p.bytes, said)
				}
			})
		}
	}
}

// TestPerftestOverCM runs perftest's tools with -R: one connection for their own messages, and then
// others for the test, for which the server creates a second listener. A client that connected
// between the two would be rejected, which ib_write_bw of perftest 4.5 does not survive. So the
// first listener is retained (libsoftrnic/cmretain.go).
func TestPerftestOverCM(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	var list []cmProgram
	for _, p := range withAll(perftestsOverCM) {
		if strings.Contains(p.args, "-c UC") {
			continue // perftest: "UC is not supported in librdmacm"
		}
		list = append(list, cmProgram{server: p.args + " -R -F", client: p.args + " -R -F SERVER", bytes: p.bytes, roceOnly: p.roceOnly()})
	}
	runAll(t, list)
}
