//go:build linux && amd64

package dropin

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestRunImpair impairs the link of ib_send_bw while it runs, and ends that. The program
// retransmits in between only, and the capture shows the repeated packets to tshark. The program
// runs until the test interrupts it: on a busy machine the commands take longer than any fixed
// time.
func TestRunImpair(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_send_bw", "perftest")
	needs(t, "/usr/bin/tshark", "tshark")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	freePort++
	port := fmt.Sprint(freePort)
	captured := filepath.Join(dir, "%p.pcapng")
	server := runner(ctx, t, dir, "--link shm:impair --addr 10.9.0.1/24 --capture "+captured,
		"ib_send_bw", "--run_infinitely", "-s", "4096", "-p", port)
	client := runner(ctx, t, dir, "--link shm:impair --addr 10.9.0.2/24 --top --impair none",
		"ib_send_bw", "--run_infinitely", "-s", "4096", "-p", port, "127.0.0.1")
	var said proc.Output
	server.Stdout, server.Stderr, client.Stdout, client.Stderr = &said, &said, &said, &said
	serverEnded, clientEnded := make(chan error, 1), make(chan error, 1)
	for _, p := range []struct {
		*exec.Cmd
		ended chan error
	}{{server, serverEnded}, {client, clientEnded}} {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { p.ended <- p.Wait() }()
		if p.Cmd == server {
			if err := listens(freePort, serverEnded); err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
		}
	}
	try := func(args ...string) (string, error) {
		cmd := runner(ctx, t, dir, "")
		cmd.Args = append([]string{cmd.Path}, args...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	softrnic := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", args, err, out, said.String())
		}
		return out
	}
	pid := strconv.Itoa(client.Process.Pid)
	// look returns the packets that the link has lost, and how often the QP has gone back. ok is
	// false as long as the client has no QP.
	look := func() (sent, lost, wentBack uint64, ok bool) {
		var node struct {
			QPs        []struct{ Counters map[string]uint64 }
			Impairment struct {
				Out struct{ Packets, Lost uint64 }
			}
		}
		text, err := try("top", "--json", "--count", "1", "--interval", "10ms", pid)
		if err != nil || json.Unmarshal([]byte(text), &node) != nil || len(node.QPs) != 1 {
			return 0, 0, 0, false
		}
		out := node.Impairment.Out
		return out.Packets, out.Lost, node.QPs[0].Counters["completer_retry_err"], true
	}
	// until looks until a condition holds.
	until := func(holds func(sent, lost uint64) bool) (sent, lost, wentBack uint64) {
		t.Helper()
		for {
			sent, lost, wentBack, ok := look()
			if ok && holds(sent, lost) {
				return sent, lost, wentBack
			}
			select {
			case err := <-clientEnded:
				t.Fatalf("the client has ended: %v\n%s", err, said.String())
			case <-ctx.Done():
				t.Fatalf("%d packets are sent, %d lost\n%s", sent, lost, said.String())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	always := func(sent, lost uint64) bool { return true }
	until(always)
	// during sets an impairment, waits for 2000 more packets, and returns how many are lost.
	during := func(impairment string) uint64 {
		t.Helper()
		if said := softrnic("impair", pid, impairment); !strings.Contains(said, impairment) {
			t.Errorf("impair %s: %s", impairment, said)
		}
		first, before, _ := until(always)
		_, lost, _ := until(func(sent, _ uint64) bool { return sent >= first+2000 })
		return lost - before
	}
	if n := during("out.loss=0%"); n != 0 {
		t.Errorf("%d packets are lost without loss", n)
	}
	if n := during("out.loss=1%"); n == 0 {
		t.Error("no packet is lost with a loss of 1 %")
	}
	if n := during("none"); n != 0 {
		t.Errorf("%d packets are lost after the end of the loss", n)
	}
	if _, _, n := until(always); n == 0 {
		t.Error("packets were lost, and the QP has not gone back")
	}
	for _, p := range []struct {
		*exec.Cmd
		ended chan error
	}{{client, clientEnded}, {server, serverEnded}} {
		_ = p.Process.Signal(syscall.SIGINT)
		if err := <-p.ended; ctx.Err() != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
	}
	files, err := filepath.Glob(strings.Replace(captured, "%p", "*", 1))
	if err != nil || len(files) != 1 {
		t.Fatalf("captures: %v, %v", files, err)
	}
	out, err := exec.CommandContext(ctx, "tshark", "-r", files[0], "-c", "20", "-Y", "infiniband.bth.opcode == 4").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "RC Send Only") {
		t.Errorf("tshark: %v\n%s", err, out)
	}
}
