//go:build linux

package interop

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer/control"
	"github.com/softrnic/softrnic/verbs"
)

// interruption is an endless rping between softrnic and the kernel, of which one side is stopped
// during the transfer.
type interruption struct {
	cmPair
	program string // softrnic
}

func (i interruption) softrnic(ctx context.Context, t *testing.T, args string) *process {
	t.Helper()
	cidr := softrnicCIDR4
	if i.here.Is6() {
		cidr = softrnicCIDR6
	}
	return startProcess(t, i.peer.Netns.Command(ctx, i.program, strings.Fields(fmt.Sprintf(
		"rping -d --transport %s --link tap:softrnic0,bridge=%s --mac %v --mtu %d --addr %s %s",
		strings.ToLower(i.transport.String()), i.peer.Netns.Bridge, softrnicMAC, i.peer.MTU, cidr, args))...))
}

// clientAndServer starts both sides, and returns when they ping.
func (i interruption) clientAndServer(ctx context.Context, t *testing.T, kernelServes bool) (ours *process, kernels *control.Process) {
	t.Helper()
	if kernelServes {
		kernels = i.startServer(t, fmt.Sprintf("rping -s -v -a %v", i.there))
		ours = i.softrnic(ctx, t, fmt.Sprintf("-c -a %v", i.there))
	} else {
		ours = i.softrnic(ctx, t, "-s")
		ours.await(t, "msg=listening")
		var err error
		if kernels, err = i.peer.Start(fmt.Sprintf("rping -c -v -a %v", i.here)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kernels.Kill() })
	}
	ours.await(t, "opcode=SEND")
	for lines := bufio.NewScanner(kernels); lines.Scan(); {
		if strings.Contains(lines.Text(), "ping data") {
			return ours, kernels
		}
	}
	t.Fatalf("the kernel does not ping:\n%s", kernels.Output())
	return nil, nil
}

func TestRpingInterrupted(t *testing.T) {
	gate.System(t)
	testRpingInterrupted(t, verbs.RoCEv2)
}

func TestIWARPRpingInterrupted(t *testing.T) {
	gate.System(t)
	testRpingInterrupted(t, verbs.IWARP)
}

func testRpingInterrupted(t *testing.T, transport verbs.Transport) {
	l := cmLab{peer: cmPeer(t, 2, transport), transport: transport}
	tracePort(t, l.peer)
	program := softrnicProgram(t)
	l.eachFamily(t, func(t *testing.T, p cmPair) {
		i := interruption{p, program}
		for _, kernelServes := range []bool{true, false} {
			kernelIs, softrnicIs := "server", "client"
			if !kernelServes {
				kernelIs, softrnicIs = "client", "server"
			}
			t.Run("kernel's "+kernelIs, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
				defer cancel()
				ours, kernels := i.clientAndServer(ctx, t, kernelServes)
				if err := kernels.Kill(); err != nil {
					t.Fatal(err)
				}
				// Linux frees a killed program's memory first, and then closes its connection.
				if err := <-ours.ended; err != nil && !strings.Contains(ours.stderr.String(), "REM_ACCESS_ERR") {
					t.Errorf("softrnic: %v\n%s", err, tailOf(ours.stderr.String(), 2000))
				}
				if want := softrnicIs + " DISCONNECT EVENT"; !strings.Contains(ours.stderr.String(), want) {
					t.Errorf("softrnic does not print %q", want)
				}
			})
			t.Run("softrnic's "+softrnicIs, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
				defer cancel()
				ours, kernels := i.clientAndServer(ctx, t, kernelServes)
				giveUp := context.AfterFunc(ctx, func() { _ = kernels.Kill() })
				defer giveUp()
				if err := ours.cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
				<-ours.ended
				// It is notified and ends; rping itself was seen to hang in its clean-up, after it
				// printed the event.
				want := kernelIs + " DISCONNECT EVENT"
				for lines := bufio.NewScanner(kernels); lines.Scan() && !strings.Contains(lines.Text(), want); {
				}
				ending, stop := context.WithTimeout(ctx, 2*time.Second)
				defer stop()
				if code, err := kernels.Wait(ending); err != nil {
					t.Logf("rping: exit status %d, %v", code, err)
					_ = kernels.Kill()
				}
				if !strings.Contains(kernels.Output(), want) {
					t.Errorf("rping does not print %q:\n%s", want, tailOf(kernels.Output(), 500))
				}
			})
		}
	})
}

// tailOf returns the end of a text.
func tailOf(s string, n int) string { return s[max(0, len(s)-n):] }
