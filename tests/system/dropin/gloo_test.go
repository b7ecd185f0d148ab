//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestGloo runs testdata/gloo.cc, which describes its checks: collective operations of Gloo, with
// three processes, over its transport ibverbs. It is written for Gloo of sid.
func TestGloo(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/include/gloo/transport/ibverbs/device.h", "libgloo-dev")
	needs(t, "/usr/bin/g++", "g++")
	program := filepath.Join(build(t), "gloo")
	if out, err := exec.Command("g++", "-O2", "-Wall", "-o", program, "testdata/gloo.cc", "-lgloo").CombinedOutput(); err != nil {
		t.Fatalf("g++: %v\n%s", err, out)
	}
	const (
		ranks = 3
		bytes = 8 * 2 << 20 // that a rank sends at least
	)
	for over, flags := range map[string]string{"sockets": "--link kernel:lo --no-shared --addr 127.18.12.%d",
		"shared memory": "--link shm:gloo --addr 10.9.0.%d/24"} {
		t.Run(over, func(t *testing.T) {
			programs.RanOf(t, "libgloo0 "+programs.Version("libgloo0"), "tests/system/dropin/testdata/gloo.cc three ranks of Gloo's ibverbs",
				over+" (RoCEv2)")
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			dir := shared(t)
			meet := shared(t)
			var said [ranks]*proc.Output
			var ended [ranks]chan error
			var counters [ranks]string
			for rank := range ranks {
				counters[rank] = filepath.Join(dir, fmt.Sprint("counters", rank))
				cmd := runner(ctx, t, dir, fmt.Sprintf(flags, rank+1), program, fmt.Sprint(rank), fmt.Sprint(ranks), meet, "1")
				cmd.Env = append(cmd.Env, "SOFTRNIC_COUNTERS="+counters[rank])
				said[rank], ended[rank] = proc.Start(t, cmd)
			}
			for rank := range ranks {
				if err := <-ended[rank]; err != nil || !strings.Contains(said[rank].String(), fmt.Sprintf("rank %d: all right", rank)) {
					t.Errorf("rank %d: %v\n%s", rank, err, said[rank].String())
				}
			}
			for rank := range ranks {
				if c, err := programs.Counted(counters[rank]); err != nil || 4*c["port_xmit_data"] < bytes {
					t.Errorf("rank %d has sent %d bytes (%v), want %d at least", rank, 4*c["port_xmit_data"], err, bytes)
				}
			}
		})
	}
}
