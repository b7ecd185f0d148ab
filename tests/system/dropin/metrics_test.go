//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestRunMetrics: Prometheus finds the queue pairs of a program run with --metrics, whether its
// devices are shown in /sys or not.
func TestRunMetrics(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, sysfs := range []string{"auto", "off"} {
		freePort += 2
		flags := fmt.Sprintf("--link shm:metrics --addr 10.9.0.1/24 --sysfs %s --metrics 127.0.0.1:%d", sysfs, freePort-1)
		program := runner(ctx, t, dir, flags, "ibv_rc_pingpong", "-g", "1", "-p", fmt.Sprint(freePort))
		var said proc.Output
		program.Stdout, program.Stderr = &said, &said
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- program.Wait() }()
		if err := listens(freePort, ended); err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", freePort-1))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s, %v\n%s", resp.Status, err, text)
		}
		for _, want := range []string{
			`(?m)^softrnic_qps\{device="softrnic0",pid="\d+",state="INIT",transport="rocev2",type="RC"\} 1$`,
			`(?m)^node_infiniband_info\{board_id="softrnic",device="softrnic0",firmware_version="1.0",hca_type="softrnic",pid="\d+"\} 1$`,
			`(?m)^node_infiniband_state_id\{device="softrnic0",pid="\d+",port="1"\} 4$`,
			`(?m)^softrnic_sent_pkts_total\{device="softrnic0",pid="\d+",transport="rocev2"\} 0$`,
		} {
			if !regexp.MustCompile(want).Match(text) {
				t.Errorf("--sysfs %s: there is no %s\n%s", sysfs, want, text)
			}
		}
		_ = program.Process.Signal(syscall.SIGTERM)
		<-ended
	}
}
