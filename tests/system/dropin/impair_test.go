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
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestRunImpair impairs the link of ib_send_bw while it runs, and ends that. The program
// retransmits in between only, and the capture shows the repeated packets to tshark.
func TestRunImpair(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_send_bw", "perftest")
	needs(t, "/usr/bin/tshark", "tshark")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	freePort++
	port := fmt.Sprint(freePort)
	captured := filepath.Join(dir, "%p.pcapng")
	server := runner(ctx, t, dir, "--link shm:impair --addr 10.9.0.1/24 --capture "+captured,
		"ib_send_bw", "-D", "5", "-s", "4096", "-p", port)
	client := runner(ctx, t, dir, "--link shm:impair --addr 10.9.0.2/24 --top --impair none",
		"ib_send_bw", "-D", "5", "-s", "4096", "-p", port,
		"127.0.0.1")
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
	for { // until the client has opened its device
		if _, err := try("impair", pid); err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	// look returns the packets that the link has lost, and how often the QP has gone back.
	look := func() (sent, lost, wentBack uint64) {
		var node struct {
			QPs        []struct{ Counters map[string]uint64 }
			Impairment struct {
				Out struct{ Packets, Lost uint64 }
			}
		}
		text := softrnic("top", "--json", "--count", "1", "--interval", "10ms", pid)
		if err := json.Unmarshal([]byte(text), &node); err != nil || len(node.QPs) != 1 {
			t.Fatalf("top: %v: %s", err, text)
		}
		out := node.Impairment.Out
		return out.Packets, out.Lost, node.QPs[0].Counters["completer_retry_err"]
	}
	// during sets an impairment, waits for 2000 more packets, and returns how many are lost.
	during := func(impairment string) uint64 {
		t.Helper()
		if said := softrnic("impair", pid, impairment); !strings.Contains(said, impairment) {
			t.Errorf("impair %s: %s", impairment, said)
		}
		first, before, _ := look()
		for {
			if now, lost, _ := look(); now >= first+2000 {
				return lost - before
			}
			time.Sleep(20 * time.Millisecond)
		}
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
	if _, _, n := look(); n == 0 {
		t.Error("packets were lost, and the QP has not gone back")
	}
	for _, ended := range []chan error{clientEnded, serverEnded} {
		if err := <-ended; err != nil {
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
