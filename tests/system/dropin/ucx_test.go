//go:build linux && amd64

package dropin

import (
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	u := findUCX(t)
	for i, link := range links {
		t.Run(link.link, func(t *testing.T) {
			u.ran(t, "ucx_info -d", link)
			dir := shared(t)
			info := runner(t.Context(), t, dir, "--link "+link.link+" --addr "+link.server, "ucx_info", "-d")
			info.Env = append(info.Env, u.env...)
			out, err := info.CombinedOutput()
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
					u.ran(t, "ucx_perftest "+p.args+" (UCX_TLS="+p.tls+")", link)
					u.perftest(t, link, dir, p.tls, strings.Fields(p.args), p.bytes)
				})
			}
		})
	}
	mpi(t, u.env)
}

// ucx is the UCX that programs load.
type ucx struct {
	version string   // of one that is not Debian's
	env     []string // with which programs find it
	alone   []string // options with which ucx_perftest does without MPI
}

// weakFence is for UCX 1.23, whose default fence READs address 0 with the R_Key 0xff, if the
// device's provider is not mlx5's. Older ones ignore it.
const weakFence = "UCX_FENCE_MODE=weak"

// findUCX returns the UCX whose installation SOFTRNIC_UCX names by its prefix, or else Debian's.
func findUCX(t *testing.T) *ucx {
	t.Helper()
	prefix := os.Getenv("SOFTRNIC_UCX")
	if prefix == "" {
		needs(t, "/usr/bin/ucx_perftest", "ucx-utils")
		u := &ucx{env: []string{weakFence}}
		f, err := elf.Open("/usr/bin/ucx_perftest")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		libraries, err := f.ImportedLibraries()
		if err != nil {
			t.Fatal(err)
		}
		// Debian 13 builds it with MPI, which it uses if its input is no terminal. Others have no
		// such option.
		if slices.ContainsFunc(libraries, func(name string) bool { return strings.HasPrefix(name, "libmpi") }) {
			u.alone = []string{"-P", "0"}
		}
		return u
	}
	u := &ucx{env: []string{weakFence, "PATH=" + prefix + "/bin:/usr/bin:/bin", "LD_LIBRARY_PATH=" + prefix + "/lib"}}
	info := exec.Command(filepath.Join(prefix, "bin/ucx_info"), "-v")
	info.Env = u.env
	out, err := info.CombinedOutput()
	if err != nil {
		t.Fatalf("ucx_info -v: %v\n%s", err, out)
	}
	version := regexp.MustCompile(`Library version: (\S+)`).FindSubmatch(out)
	if version == nil {
		t.Fatalf("ucx_info -v prints no version:\n%s", out)
	}
	u.version = string(version[1])
	return u
}

// routesOf returns what lets UCX 1.23 connect to hosts to which the kernel has no route through the
// interface of the device: it is then no interface of the kernel.
func routesOf(link string) []string {
	if strings.HasPrefix(link, "shm") {
		return []string{"UCX_IB_ROCE_REACHABILITY_MODE=all"}
	}
	return nil
}

// ran records the outcome of a test that runs a command line of UCX.
func (u *ucx) ran(t *testing.T, command string, link endpoints) {
	t.Helper()
	if over := link.name() + " (RoCEv2)"; u.version != "" {
		programs.RanOf(t, "UCX "+u.version, command, over)
	} else {
		programs.Ran(t, command, over)
	}
}

// perftest runs ucx_perftest between two processes over one of UCX's transports only.
func (u *ucx) perftest(t *testing.T, link endpoints, dir, tls string, args []string, bytes uint64) {
	t.Helper()
	command(t) // before the time begins
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	freePort++
	program := append([]string{"ucx_perftest", "-p", fmt.Sprint(freePort)}, u.alone...)
	server := runner(ctx, t, dir, "--link "+link.link+" --addr "+link.server, program...)
	client := runner(ctx, t, dir, "--link "+link.link+" --addr "+link.client, append(append(program, "127.0.0.1"), args...)...)
	file := map[string]string{"server": filepath.Join(dir, fmt.Sprint("server", freePort)),
		"client": filepath.Join(dir, fmt.Sprint("client", freePort))}
	own := []string{"UCX_TLS=" + tls, "UCX_NET_DEVICES=softrnic0:1", "HOME=" + dir} // HOME: Debian 13 builds it with MPI
	own = append(append(own, u.env...), routesOf(link.link)...)
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
