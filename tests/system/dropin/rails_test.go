//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestRails runs testdata/rails.c, which loads libibverbs.so as NCCL does, over four rails. Each
// has its own link, address and device.
func TestRails(t *testing.T) {
	gate.System(t)
	const rails = 4
	program := filepath.Join(build(t), "rails")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/rails.c",
		"-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for _, link := range []struct {
		links, server, client string
		mib                   int
	}{
		{"shm:rail0;shm:rail1;shm:rail2;shm:rail3", "10.9.0.1/24;10.9.1.1/24;10.9.2.1/24;10.9.3.1/24",
			"10.9.0.2/24;10.9.1.2/24;10.9.2.2/24;10.9.3.2/24", 1024},
		{"kernel:lo", "127.18.1.1;127.18.1.2;127.18.1.3;127.18.1.4", "127.18.2.1;127.18.2.2;127.18.2.3;127.18.2.4", 128},
	} {
		t.Run(link.links, func(t *testing.T) {
			medium := endpoints{link: link.links}.name()
			programs.Ran(t, fmt.Sprintf("tests/system/dropin/testdata/rails.c as NCCL's net-ib, %d devices, %d MiB", rails, link.mib),
				medium+" (RoCEv2)")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			server, client := endpoints{link: link.links, server: link.server, client: link.client}.pair(t)
			for _, n := range []*node{server, client} {
				n.env = append(n.env, "SOFTRNIC_CARD=connectx7")
			}
			server.env = append(server.env, "NCCL_LIBIBVERBS_SO="+filepath.Join(build(t), "libibverbs.so.1"))
			freePort++
			args := []string{fmt.Sprint(freePort), "mlx5", fmt.Sprint(rails), fmt.Sprint(link.mib)}
			began := time.Now()
			t.Log(run(t, server.program(ctx, t, program, args...), client.program(ctx, t, program, append(args, "127.0.0.1")...), freePort),
				time.Since(began))
			for side, counter := range map[*node]string{server: "port_rcv_data", client: "port_xmit_data"} {
				if got, want := 4*side.counted(t)[counter], uint64(link.mib)<<20; got < want {
					t.Errorf("%s is %d bytes, want %d at least", counter, got, want)
				}
			}
		})
	}
}

// TestDevicesOfRails: programs see the devices of all rails, under the configured names. The first
// device of each rail is the one that rdma_cm uses.
func TestDevicesOfRails(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_devices", "ibverbs-utils")
	dir := shared(t)
	for _, c := range []struct{ devices, transport, want string }{
		{"mlx5_0,siw0", "", "mlx5_0 siw0 mlx5_1 siw1\n"},
		{"mlx5_0,siw0", "iwarp", "siw0 mlx5_0 siw1 mlx5_1\n"},
		{"mlx5_0,;rocep1s0,", "iwarp,roce", "mlx5_0 rocep1s0\n"},
	} {
		cmd := runner(t.Context(), t, dir, "", "sh", "-c", `echo $(ibv_devices | tail -n +3 | awk '{print $1}')`)
		cmd.Env = append(cmd.Env, "SOFTRNIC_LINK=pipe", "SOFTRNIC_ADDR=10.9.0.1/24;10.9.1.1/24", "SOFTRNIC_DEVICE="+c.devices,
			"SOFTRNIC_TRANSPORT="+c.transport)
		cmd.Stderr = os.Stderr
		if out, err := cmd.Output(); err != nil || string(out) != c.want {
			t.Errorf("%s: %v, devices %q, want %q", c.devices, err, out, c.want)
		}
	}
}
