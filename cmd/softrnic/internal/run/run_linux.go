package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nldev"
)

// Run executes the program in place of this one, or runs it in a new mount namespace and waits for
// it.
func (c *Command) Run(ctx context.Context, e *cli.Env) (err error) {
	if c.Inside != "" {
		return c.runInside()
	}
	if c.Describe {
		return c.describeContainer(e)
	}
	if c.Netlink != 0 {
		return nldev.Serve(os.Stdin, c.Tree, c.Netlink)
	}
	libs, command, err := dropin.FindInstall(c.Libs)
	if err != nil {
		return err
	}
	if err := refuseMusl(c.Program[0]); err != nil {
		return notRun(err)
	}
	cfg, err := c.Complete(os.Getenv)
	if err != nil {
		return err
	}
	if c.Sockets {
		return c.withSockets(ctx, e, cfg, libs, command)
	}
	env := c.environment(append([]string{libs}, missingProviders(libs)...), command)
	stop, err := c.serveMetrics(e, cfg.Rails[0].Flags.Log)
	if err != nil {
		return err
	}
	defer stop()
	stays := c.Metrics != "" // beside the program
	if f := cfg.Rails[0].Flags; cfg.Counters != "" || f.Trace != "" || f.Capture != "" {
		written, remove, failed := newWhole()
		if failed != nil {
			return failed
		}
		defer remove()
		defer func() { err = written.or(err) }()
		stays, env = true, append(env, "SOFTRNIC_WHOLE="+string(written))
	}
	describable := true
	for _, r := range cfg.Rails {
		if m := r.Flags.Medium(); m != "kernel" && m != "shm" && m != "pipe" && m != "wireguard" {
			describable = false
			if c.Sysfs == "on" || c.Sysfs == "preload" {
				return fmt.Errorf("--sysfs %s: link %s can be opened once only, which is the program's right", c.Sysfs, m)
			}
		}
	}
	if c.Sysfs == "off" || !describable {
		if stays {
			return c.spawn(e, env)
		}
		return c.exec(env)
	}
	byLibrary := c.Sysfs == "preload"
	if !byLibrary {
		why := mayUnshare()
		if c.Sysfs == "auto" && why == nil {
			why = losesByUnsharing()
		}
		if c.Sysfs == "on" && why != nil {
			return fmt.Errorf("--sysfs on: %w", why)
		}
		byLibrary = why != nil
	}
	parent := os.TempDir() // where a file system in memory is mounted
	if byLibrary {
		parent = inMemory()
	}
	tree, remove, err := newTree(parent)
	if err != nil {
		return err
	}
	defer remove()
	t, err := gather(e, &cfg, command, byLibrary, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.of.Close()) }()
	if !byLibrary {
		return c.unshared(e, command, libs, tree, env, t)
	}
	if err := t.write(tree); err != nil {
		return err
	}
	t.of.follow(tree)
	return c.preloaded(e, libs, tree, env)
}

// exec runs the program in place of this one.
func (c *Command) exec(env []string) error {
	file, err := exec.LookPath(c.Program[0])
	if err == nil {
		err = syscall.Exec(file, c.Program, env)
	}
	if errors.Is(err, syscall.ENOEXEC) {
		err = syscall.Exec(shell, asScript(file, c.Program), env)
	}
	return notRun(err)
}

const shell = "/bin/sh"

// asScript returns the arguments of a shell that runs a file which the kernel does not, as it has no
// line with #!. POSIX's execvp does so too, and thus env and sudo.
func asScript(file string, program []string) []string {
	return append([]string{shell, file}, program[1:]...)
}

// The exit statuses of shells for a program that cannot be run.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // plus the number of the signal
)

// notRun prints the reason why a program was not run to stderr, and returns the exit status.
func notRun(err error) error {
	fmt.Fprintln(os.Stderr, "softrnic:", err)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return cli.ExitStatus(statusNotFound)
	}
	return cli.ExitStatus(statusNotExecutable)
}

// losesByUnsharing returns an error if the program has rights that it would lose in a new
// namespace, as root in a container who may not mount.
func losesByUnsharing() error {
	switch caps, err := effectiveCapabilities(); {
	case err != nil:
		return err
	case caps != 0 && !hasCapability(unix.CAP_SYS_ADMIN):
		return errors.New("this user has capabilities that a user namespace would take, and not CAP_SYS_ADMIN")
	}
	return nil
}

// mayUnshare returns nil if this user may create a mount namespace and mount in it.
func mayUnshare() error {
	cmd := exec.Command("/proc/self/exe", "run", "--inside", tryMounts, "--", "true")
	cmd.SysProcAttr = ownNamespaces()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("this user may make no mount namespace, or not mount in it: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// unshared runs this command again in new namespaces. It creates the files there, in a file system
// that is mounted at dir, and keeps them as the devices are.
func (c *Command) unshared(e *cli.Env, command, libs, dir string, env []string, t *tree) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[1])
	conn, err := packetConn(pair[0])
	if err != nil {
		return err
	}
	// A number of its own is inherited, so that the program gets the descriptors that its caller has
	// given it.
	theirs, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD, 3)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer unix.Close(theirs)
	var passed sync.WaitGroup
	defer passed.Wait()
	defer conn.Close()
	passed.Go(func() {
		defer conn.Close() // the command inside waits
		files, path, err := receiveDirectory(conn)
		if err == nil {
			t.of.dir = files
			err = t.write(path)
		}
		if err == nil {
			_, err = conn.Write([]byte{0})
		}
		switch {
		case err == nil:
			t.of.follow(path)
		case !errors.Is(err, net.ErrClosed): // the command inside says why it has ended
			fmt.Fprintln(e.Stderr, "softrnic: create the devices' files:", err)
		}
	})
	cmd := exec.Command(command, append([]string{"run", "--inside", dir, "--pass", strconv.Itoa(theirs), "--libs", libs, "--"},
		c.Program...)...)
	cmd.Env, cmd.SysProcAttr = env, ownNamespaces()
	return wait(e, cmd)
}

// preloaded runs the program with the preloaded library that shows it the files of tree.
func (c *Command) preloaded(e *cli.Env, libs, tree string, env []string) error {
	preload := filepath.Join(libs, dropin.SysfsLibrary)
	var own []string
	for _, v := range env {
		if name, others, _ := strings.Cut(v, "="); name == "LD_PRELOAD" {
			preload += ":" + others
		} else {
			own = append(own, v)
		}
	}
	return c.spawn(e, append(own, "LD_PRELOAD="+preload, "SOFTRNIC_SYSFS="+tree))
}

// spawn runs the program as a child.
func (c *Command) spawn(e *cli.Env, env []string) error {
	cmd := exec.Command(c.Program[0], c.Program[1:]...)
	if cmd.Err != nil {
		return notRun(cmd.Err)
	}
	cmd.Env = env
	return wait(e, cmd)
}

// inForeground reports whether this process and its program are in the foreground of their
// terminal, which then sends SIGINT and SIGQUIT to both.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // no terminal
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// wait runs a command and returns its exit status. It forwards signals. If this process is killed,
// the command is killed too.
func wait(e *cli.Env, cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// The parent death signal is sent when the thread that started the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, e.Stdout, e.Stderr
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	err := cmd.Start()
	if errors.Is(err, syscall.ENOEXEC) {
		cmd = &exec.Cmd{Path: shell, Args: asScript(cmd.Path, cmd.Args), Env: cmd.Env, SysProcAttr: cmd.SysProcAttr, Stdin: cmd.Stdin,
			Stdout: cmd.Stdout, Stderr: cmd.Stderr}
		err = cmd.Start()
	}
	if err != nil {
		return notRun(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// In the foreground, the terminal has also sent it to the program.
			if s != syscall.SIGINT && s != syscall.SIGQUIT || !inForeground() {
				_ = cmd.Process.Signal(s)
			}
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				return err
			}
			if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
				return cli.ExitStatus(statusSignal + int(status.Signal()))
			}
			return cli.ExitStatus(exit.ExitCode())
		}
	}
}
