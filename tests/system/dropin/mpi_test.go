//go:build linux && amd64

package dropin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// mpi runs testdata/mpi.c over UCX and over libfabric, with two and four ranks. The ranks share an
// address, or have one each on shared memory, where softrnic run is in front of mpirun. Outside the
// long run it is one row of Open MPI over UCX. The programs find UCX with env.
func mpi(t *testing.T, env []string) {
	long := os.Getenv("SOFTRNIC_LONG") != ""
	for _, m := range []struct {
		name, packages, args string
		transports           []string
	}{
		{"openmpi", "openmpi-bin and libopenmpi-dev", "--oversubscribe --mca pml ucx --mca btl ^openib,tcp,vader",
			[]string{"rc_v", "ud_v"}},
		{"openmpi", "openmpi-bin and libopenmpi-dev",
			"--oversubscribe --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm --mca btl self", []string{""}},
		{"mpich", "mpich and libmpich-dev", "", []string{"rc_v", "ud_v"}},
	} {
		if (m.name == "mpich" || m.transports[0] == "") && !long {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			needs(t, "/usr/bin/mpicc."+m.name, m.packages)
			program := filepath.Join(build(t), m.name)
			if out, err := exec.Command("mpicc."+m.name, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program,
				"testdata/mpi.c").CombinedOutput(); err != nil {
				t.Fatalf("mpicc: %v\n%s", err, out)
			}
			for _, tls := range m.transports {
				for _, ranks := range []int{2, 4} {
					for over, flags := range map[string]string{"sockets": "--link kernel:lo --addr 127.18.3.1 --shared",
						"shared memory": "--link shm:mpi"} {
						if tls == "" && over == "sockets" { // libfabric skips addresses of the loopback interface
							continue
						}
						if !long && (tls != "rc_v" || ranks != 2 || over != "shared memory") {
							continue
						}
						t.Run(fmt.Sprint(over, " ", tls, " ", ranks), func(t *testing.T) {
							how := fmt.Sprintf("(UCX_TLS=%s,self)", tls)
							if tls == "" {
								how = "(libfabric: verbs;ofi_rxm)"
							}
							programs.Ran(t, fmt.Sprintf("mpirun.%s -np %d %s", m.name, ranks, how), over+" (RoCEv2)")
							mpirun(t, flags, ranks, tls, env, append(strings.Fields(fmt.Sprintf("mpirun.%s -np %d %s", m.name, ranks, m.args)),
								program))
						})
					}
				}
			}
		})
	}
}

// mpirun runs an MPI program with a number of ranks over one of UCX's transports only, and checks
// that the device has carried its data.
func mpirun(t *testing.T, flags string, ranks int, tls string, env, program []string) {
	t.Helper()
	const bytes = 16 << 20 // minimum that a rank sends and receives
	command(t)             // before the time begins
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := shared(t)
	counters := filepath.Join(dir, "counters")
	cmd := runner(ctx, t, dir, flags, program...)
	cmd.Env = append(append(cmd.Env, env...), "UCX_TLS="+tls+",self", "UCX_NET_DEVICES=softrnic0:1", "HOME="+dir,
		"SOFTRNIC_COUNTERS="+counters)
	cmd.Env = append(cmd.Env, routesOf(strings.TrimPrefix(flags, "--link "))...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d ranks: all right\n", ranks); !strings.Contains(string(out), want) {
		t.Errorf("the program does not print %q", want)
	}
	text, err := os.ReadFile(counters)
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	for line := range strings.Lines(string(text)) {
		var c map[string]uint64
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		if 4*min(c["port_xmit_data"], c["port_rcv_data"]) >= bytes {
			used++
		}
	}
	if used != ranks {
		t.Errorf("%d of %d ranks have sent and received %d bytes through the device:\n%s", used, ranks, bytes, text)
	}
}

// TestUCC runs UCC's own programs between two ranks of Open MPI over UCX. ucc_test_mpi checks the
// results of collective operations.
func TestUCC(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/bin/ucc_perftest", "ucc-utils")
	env := findUCX(t).env
	for over, flags := range map[string]string{"sockets": "--link kernel:lo --addr 127.18.3.1 --shared", "shared memory": "--link shm:ucc"} {
		for _, tls := range []string{"rc_v", "ud_v"} {
			for _, p := range []string{"ucc_test_mpi --colls allreduce,alltoall,bcast --dtypes int32,float64 --ops sum,max --teams world",
				"ucc_perftest -c allreduce -e 16384 -n 20 -w 2", "ucc_perftest -c alltoall -e 16384 -n 20 -w 2"} {
				t.Run(over+" "+tls+" "+p, func(t *testing.T) {
					programs.Ran(t, p+" (UCX_TLS="+tls+",self)", over+" (RoCEv2)")
					command(t) // before the time begins
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
					defer cancel()
					dir := shared(t)
					counters := filepath.Join(dir, "counters")
					cmd := runner(ctx, t, dir, flags, append(strings.Fields("mpirun.openmpi --oversubscribe -np 2 --mca pml ucx"),
						strings.Fields(p)...)...)
					cmd.Env = append(append(cmd.Env, env...), "UCX_TLS="+tls+",self", "UCX_NET_DEVICES=softrnic0:1", "HOME="+dir,
						"SOFTRNIC_COUNTERS="+counters)
					cmd.Env = append(cmd.Env, routesOf(strings.TrimPrefix(flags, "--link "))...)
					out, err := cmd.CombinedOutput()
					if err != nil {
						t.Fatalf("%v\n%s", err, out)
					}
					t.Logf("%s", out)
					if sum, err := programs.Counted(counters); err != nil || 4*sum["port_xmit_data"] < 1<<20 {
						t.Errorf("the devices have sent less than 1 MiB (%v): %v", err, sum)
					}
				})
			}
		}
	}
}
