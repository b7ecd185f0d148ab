//go:build linux && amd64

package dropin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestUCX runs UCX's own tools under softrnic run. ucx_info shows the RoCE device with both
// transports of plain verbs, and ucx_perftest moves messages over each, between two processes. Then
// MPI programs run over UCX. In the long run all of that runs over each link, otherwise one row
// over each, and one of Open MPI.
func TestUCX(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ucx_perftest", "ucx-utils")
	for i, link := range links {
		t.Run(link.link, func(t *testing.T) {
			programs.Ran(t, "ucx_info -d", link.name()+" (RoCEv2)")
			dir := shared(t)
			out, err := runner(t.Context(), t, dir, "--link "+link.link+" --addr "+link.server, "ucx_info", "-d").CombinedOutput()
			if err != nil {
				t.Fatalf("ucx_info: %v\n%s", err, out)
			}
			for _, transport := range []string{"rc_verbs", "ud_verbs"} {
				if !strings.Contains(string(out), "Transport: "+transport+"\n#         Device: softrnic0:1\n") {
					t.Errorf("ucx_info does not show %s on softrnic0:\n%s", transport, out)
				}
			}
			for j, p := range []struct {
				tls, args string
				bytes     uint64 // minimum that a side's device sends and receives
			}{
				{"ud_v", "-t tag_lat -n 1000 -w 10", 2 * 1000 * 8},
				{"rc_v", "-t tag_bw -s 65536 -n 500 -w 10", 500 * 65536},
				{"rc_v", "-t tag_lat -n 1000 -w 10", 2 * 1000 * 8},
				{"rc_v", "-t ucp_put_bw -s 65536 -n 500 -w 10", 500 * 65536},
				{"rc_v", "-t ucp_get -s 65536 -n 500 -w 10", 500 * 65536},
				{"rc_v", "-t ucp_fadd -s 8 -n 500 -w 10", 500 * 8},
				{"ud_v", "-t tag_bw -s 4096 -n 500 -w 10", 500 * 4096},
			} {
				if j != i && os.Getenv("SOFTRNIC_LONG") == "" {
					continue
				}
				t.Run(p.tls+" "+p.args, func(t *testing.T) {
					programs.Ran(t, "ucx_perftest "+p.args+" (UCX_TLS="+p.tls+")", link.name()+" (RoCEv2)")
					ucxPerftest(t, link, dir, p.tls, strings.Fields(p.args), p.bytes)
				})
			}
		})
	}
	mpi(t)
}

// ucxPerftest runs ucx_perftest between two processes over one of UCX's transports only.
func ucxPerftest(t *testing.T, link endpoints, dir, tls string, args []string, bytes uint64) {
	t.Helper()
	command(t) // before the time begins
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	freePort++
	program := []string{"ucx_perftest", "-p", fmt.Sprint(freePort)}
	server := runner(ctx, t, dir, "--link "+link.link+" --addr "+link.server, program...)
	client := runner(ctx, t, dir, "--link "+link.link+" --addr "+link.client, append(append(program, "127.0.0.1"), args...)...)
	file := map[string]string{"server": filepath.Join(dir, fmt.Sprint("server", freePort)),
		"client": filepath.Join(dir, fmt.Sprint("client", freePort))}
	own := []string{"UCX_TLS=" + tls, "UCX_NET_DEVICES=softrnic0:1", "HOME=" + dir} // HOME: Debian 13 builds it with MPI
	server.Env = append(append(server.Env, own...), "SOFTRNIC_COUNTERS="+file["server"])
	client.Env = append(append(client.Env, own...), "SOFTRNIC_COUNTERS="+file["client"])
	run(t, server, client, freePort)
	for side, name := range file {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatalf("the %s has not written its counters: %v", side, err)
		}
		var c map[string]uint64
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatalf("%s: %v\n%s", side, err, text)
		}
		if sum := 4 * (c["port_xmit_data"] + c["port_rcv_data"]); sum < bytes {
			t.Errorf("the %s's device carried %d bytes, want %d at least: %v", side, sum, bytes, c)
		}
	}
}
