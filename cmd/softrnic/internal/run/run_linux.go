package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/namespace"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nldev"
)

// Run executes the program in place of this one, or runs it in a new mount namespace and waits for
// it.
func (c *Command) Run(ctx context.Context, e *cli.Env) (err error) {
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
	if c.Sysfs != "preload" {
		why := losesByUnsharing()
		if c.Sysfs == "on" || why == nil {
			why = c.unshared(e, &cfg, command, libs, env)
		}
		switch {
		case !errors.As(why, new(namespace.MountError)):
			return why // the program has run, or something else is wrong
		case c.Sysfs == "on":
			return fmt.Errorf("--sysfs on: %w", why)
		}
	}
	return c.preloaded(e, &cfg, command, libs, env)
}

// exec runs the program in place of this one.
func (c *Command) exec(env []string) error { return notRun(namespace.Exec(c.Program, env)) }

// statusSignal is the exit status of shells for a program that a signal has ended, minus the number
// of the signal.
const statusSignal = 128

// notRun prints the reason why a program was not run to stderr, and returns the exit status.
func notRun(err error) error { return cli.ExitStatus(namespace.NotRun(err)) }

// losesByUnsharing returns an error if the program has rights that it would lose in a new
// namespace, as root in a container who may not mount.
func losesByUnsharing() error {
	switch caps, err := effectiveCapabilities(); {
	case err != nil:
		return namespace.MountError(err.Error())
	case caps != 0 && !hasCapability(unix.CAP_SYS_ADMIN):
		return namespace.MountError("this user has capabilities that a user namespace would take, and not CAP_SYS_ADMIN")
	}
	return nil
}

// unshared runs the program in new namespaces, which a small program prepares. The error is a
// namespace.MountError if this user may not have the namespaces.
func (c *Command) unshared(e *cli.Env, cfg *dropin.Config, command, libs string, env []string) (err error) {
	program := filepath.Join(libs, namespace.Program)
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("--libs: %w (go run ./cmd/dropin/build makes it)", err)
	}
	files, remove, err := newTree(os.TempDir()) // not /dev/shm: /dev is mounted with all that is in it
	if err != nil {
		return namespace.MountError("a directory for the devices' files: " + err.Error())
	}
	defer remove()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	inside, err := namespace.NewOutside(pair[0])
	if err != nil {
		return errors.Join(err, unix.Close(pair[1]))
	}
	defer inside.Close()
	// A number of its own is inherited, so that the program gets the descriptors that its caller
	// has given it.
	theirs, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD, 3)
	_ = unix.Close(pair[1])
	if err != nil {
		return err
	}
	cmd := exec.Command(program, append([]string{strconv.Itoa(theirs), filepath.Join(libs, dropin.SysfsLibrary), command, files},
		c.Program...)...)
	cmd.Env, cmd.SysProcAttr = env, ownNamespaces()
	p, err := start(e, cmd)
	_ = unix.Close(theirs)
	if err != nil {
		return namespace.MountError("no program in a mount namespace: " + err.Error())
	}
	t, err := gather(e, cfg, command, false) // while the program mounts
	if err != nil {
		p.kill()
		return err
	}
	mounted, err := inside.Directory()
	switch {
	case errors.Is(err, io.EOF): // a filter of system calls may have ended it, or the user
		ended := p.wait()
		if !slices.Contains(endedByUser, ended) {
			ended = namespace.MountError(fmt.Sprint("the program in the mount namespace has ended: ", ended))
		}
		return errors.Join(ended, t.of.Close())
	case err != nil:
		p.kill()
		return errors.Join(err, t.of.Close())
	}
	defer mounted.Close()
	prepared := make(chan error, 1)
	go func() { prepared <- t.create(inside, "/proc/self/fd/"+strconv.Itoa(int(mounted.Fd()))) }()
	ended := p.wait()
	_ = inside.Close()                 // create waits no longer
	if err := <-prepared; err != nil { // and the exit status is that of the program which has said why
		return errors.Join(err, t.of.Close())
	}
	return errors.Join(ended, t.of.Close())
}

// endedByUser are the exit statuses of a program that its user has ended.
var endedByUser = []error{cli.ExitStatus(statusSignal + int(syscall.SIGINT)), cli.ExitStatus(statusSignal + int(syscall.SIGTERM)),
	cli.ExitStatus(statusSignal + int(syscall.SIGHUP)), cli.ExitStatus(statusSignal + int(syscall.SIGQUIT))}

// create creates the files below root, lets the program in the namespace go on, and keeps the files
// as the devices are.
func (t *tree) create(inside namespace.Outside, root string) error {
	if err := t.write(root); err != nil {
		_ = inside.Close() // the program waits for the files
		return fmt.Errorf("create the devices' files: %w", err)
	}
	if err := inside.Created(); err != nil {
		return err
	}
	t.of.follow(root)
	return nil
}

// preloaded runs the program with the preloaded library that shows it the files of the devices.
func (c *Command) preloaded(e *cli.Env, cfg *dropin.Config, command, libs string, env []string) (err error) {
	files, remove, err := newTree(inMemory())
	if err != nil {
		return err
	}
	defer remove()
	t, err := gather(e, cfg, command, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.of.Close()) }()
	if err := errors.Join(t.keepKernels(), t.write(files)); err != nil {
		return err
	}
	t.of.follow(files)
	preload := filepath.Join(libs, dropin.SysfsLibrary)
	var own []string
	for _, v := range env {
		if name, others, _ := strings.Cut(v, "="); name == "LD_PRELOAD" {
			preload += ":" + others
		} else {
			own = append(own, v)
		}
	}
	return c.spawn(e, append(own, "LD_PRELOAD="+preload, "SOFTRNIC_SYSFS="+files))
}

// spawn runs the program as a child.
func (c *Command) spawn(e *cli.Env, env []string) error {
	cmd := exec.Command(c.Program[0], c.Program[1:]...)
	if cmd.Err != nil {
		return notRun(cmd.Err)
	}
	cmd.Env = env
	p, err := start(e, cmd)
	if err != nil {
		return notRun(err)
	}
	return p.wait()
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

// process is a child that gets this process's signals.
type process struct {
	cmd     *exec.Cmd
	signals chan os.Signal
}

// start starts a command. If this process is killed, the command is killed too. The caller then
// calls wait or kill, on the same goroutine.
func start(e *cli.Env, cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, e.Stdout, e.Stderr
	p := &process{cmd: cmd, signals: make(chan os.Signal, 8)}
	signal.Notify(p.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	// The parent death signal is sent when the thread that started the command ends.
	runtime.LockOSThread()
	err := cmd.Start()
	if errors.Is(err, syscall.ENOEXEC) {
		script := namespace.AsScript(cmd.Path, cmd.Args)
		p.cmd = &exec.Cmd{Path: script[0], Args: script, Env: cmd.Env, SysProcAttr: cmd.SysProcAttr, Stdin: cmd.Stdin,
			Stdout: cmd.Stdout, Stderr: cmd.Stderr}
		err = p.cmd.Start()
	}
	if err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func (p *process) release() {
	runtime.UnlockOSThread()
	signal.Stop(p.signals)
}

// kill ends the command.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.release()
}

// wait forwards signals, and returns the exit status of the command.
func (p *process) wait() error {
	defer p.release()
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	for {
		select {
		case s := <-p.signals:
			// In the foreground, the terminal has also sent it to the program.
			if s != syscall.SIGINT && s != syscall.SIGQUIT || !inForeground() {
				_ = p.cmd.Process.Signal(s)
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
