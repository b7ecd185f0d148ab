package conform

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
)

// The namespace has a cable between the interfaces targetEnd and testerEnd, and the target's
// responder on the loopback interface.
const (
	targetEnd, testerEnd = "target0", "tester0"
	targetAddr           = "10.83.0.1/24"
	responderAddr        = "127.0.0.1:18516"
	responderWait        = 10 * time.Second // how long the responder may take to listen
)

// inNamespace runs this command again in a new network namespace, which ends with the command. A
// user other than root also gets a user namespace, in which the command may create interfaces.
func inNamespace(ctx context.Context, e *cli.Env) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append(os.Args[1:], "--inside")...)
	cmd.Stdout, cmd.Stderr = e.Stdout, e.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	runtime.LockOSThread() // the child's parent death signal follows this thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("--netns: this user may make no network namespace here (root may): %w", err)
	}
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return cli.ExitStatus(exit.ExitCode()) // the child has reported the error
	}
	return err
}

// withTarget creates the cable, starts the target, and sets the command's flags to test it. stop
// ends the target.
func (c *Command) withTarget() (stop func(), err error) {
	if err := makeCable(); err != nil {
		return nil, fmt.Errorf("--netns: %w", err)
	}
	c.token = rand.Text()
	cmd := exec.Command("/proc/self/exe", "serve", "--conform", "--conform-addr", responderAddr, "--congestion", "--link",
		"packet:"+targetEnd, "--addr", targetAddr)
	cmd.Env = append(os.Environ(), control.TokenVariable+"="+c.token)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread() // until this process ends
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("--netns: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	c.Control, c.Target, c.Addr = responderAddr, netip.MustParsePrefix(targetAddr).Addr(), netip.MustParsePrefix(targetAddr).Addr().Next()
	if err := c.Link.UnmarshalText([]byte("packet:" + testerEnd)); err != nil {
		stop()
		return nil, err
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", responderAddr)
		if err == nil {
			return stop, conn.Close()
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("--netns: the target has ended: %w: %s", err, bytes.TrimSpace(said.Bytes()))
		default:
		}
		if time.Since(began) > responderWait {
			stop()
			return nil, fmt.Errorf("--netns: the target does not listen: %w", err)
		}
	}
}

// makeCable creates the interfaces, and brings them and the loopback interface up.
func makeCable() error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: targetEnd, MTU: 1500}, PeerName: testerEnd,
		PeerMTU: 1500}); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	for _, name := range []string{"lo", targetEnd, testerEnd} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("bring %s up: %w", name, err)
		}
	}
	return nil
}
