// Command softrnic is a software RDMA network interface in one program: it runs RDMA inside a process, on a TAP
// interface, or on a network interface, with no kernel module.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/link/pipe"
)

// Exit codes.
const (
	exitOK = iota
	exitFailed
	exitUsage
)

// cli is the command line.
type cli struct {
	Demo     demoCmd     `cmd:"" help:"Run every RDMA operation between two nodes in this process, and verify the data. Start here."`
	Devinfo  devinfoCmd  `cmd:"" help:"Describe a node's RDMA device and its GIDs, like ibv_devinfo."`
	Pingpong pingpongCmd `cmd:"" help:"Bounce messages between two nodes, either of which may be the real ibv_*_pingpong."`
	Rping    rpingCmd    `cmd:"" help:"Ping over an rdma_cm connection with RDMA READ and WRITE; either side may be the real rping."`
	Mckey    mckeyCmd    `cmd:"" help:"Send to a multicast group, or receive from it; others in it may be the real mckey."`
	Perf     perfCmd     `cmd:"" help:"Measure bandwidth, latency or message rate between two nodes, like perftest's ib_write_bw and its kin."`
	Serve    serveCmd    `cmd:"" help:"Be a lab node that answers ping, ibv_rc_pingpong and rping until stopped."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

const overview = `SoftRNIC is an RDMA network card in software, wholly in user space.

A node is one host with an RDMA device: it has an Ethernet link (--link), IP addresses (--addr), and speaks RoCEv2,
so other nodes and Linux machines with RDMA hardware or rdma_rxe are its peers.

Examples:

  softrnic demo
        see RDMA work: no privileges, nothing to set up

  softrnic perf write bw --loopback
        how fast it is inside this process

  softrnic pingpong rc --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24
        wait for a Linux machine's: ibv_rc_pingpong -d rxe0 -g 1 10.0.0.9

  softrnic pingpong rc --link packet:eth0 --addr 10.0.0.9/24 10.0.0.1
        play with the ibv_rc_pingpong that waits on 10.0.0.1`

// env is what a run of the program has of the world.
type env struct {
	stdout, stderr io.Writer
	// lan is the switch that nodes with --link pipe meet on; nil gives each a switch of its own.
	lan *pipe.Switch
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	os.Exit(run(ctx, os.Args[1:], &env{stdout: os.Stdout, stderr: os.Stderr}))
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, e *env) int {
	exited := false // kong has printed what was asked for: --help or --version
	parser := kong.Must(&cli{},
		kong.Name("softrnic"),
		kong.Description(overview),
		kong.Vars{"version": version()},
		kong.Writers(e.stdout, e.stderr),
		kong.Exit(func(int) { exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true, WrapUpperBound: 120}),
		kong.ExplicitGroups([]kong.Group{nodeGroup}),
		kong.Bind(e),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	cmd, err := parser.Parse(args)
	switch {
	case exited:
		return exitOK
	case err != nil:
		return e.fail(usageError{fmt.Errorf("%w (softrnic --help explains)", err)})
	}
	if err = cmd.Run(); err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("interrupted")
	}
	return e.fail(err)
}

// fail reports err, if there is one, on one line, and returns the exit code.
func (e *env) fail(err error) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(e.stderr, "softrnic: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailed
}

// usageError is an error in the command line itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("softrnic %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
