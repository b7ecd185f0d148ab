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
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/link"
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
	// counted has each node count the packets on its link.
	counted bool
}

// onPipe is the world of nodes that meet on a switch of their own.
func (e *env) onPipe(mtu int, opts ...pipe.Option) (*env, error) {
	if mtu != 0 {
		opts = append(opts, pipe.MTU(mtu))
	}
	lan, err := pipe.New(opts...)
	if err != nil {
		return nil, err
	}
	return &env{stdout: e.stdout, stderr: e.stderr, lan: lan, counted: true}, nil
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
		mappers,
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
		return e.fail(badUsage(err))
	}
	if err = cmd.Run(); err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("interrupted")
	}
	return e.fail(err)
}

// badUsage is an error of parsing, with the way to help, and with the commands that there are where one is not.
func badUsage(err error) error {
	failed := (*kong.ParseError)(nil)
	if !errors.As(err, &failed) {
		return usageError{err}
	}
	node := failed.Context.Selected()
	if node == nil {
		node = failed.Context.Model.Node
	}
	var commands []string
	for _, child := range node.Children {
		commands = append(commands, child.Name)
	}
	if unknown := "unexpected argument"; strings.HasPrefix(err.Error(), unknown) && len(commands) > 0 {
		what, _, _ := strings.Cut(err.Error(), ", did you mean")
		err = fmt.Errorf("%s: the commands are %s", what, strings.Join(commands, ", "))
	}
	return usageError{fmt.Errorf("%w (%s --help explains)", err, node.FullPath())}
}

// mappers are how flags of these types are read.
var mappers = kong.OptionFunc(func(k *kong.Kong) error {
	return errors.Join(
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)).Apply(k),
		kong.NamedMapper("port", between(1, 1<<16-1, "")).Apply(k),
		kong.NamedMapper("mtu", between(link.MinMTU, link.MaxSuperframe, " bytes: 1500 for a RoCE path MTU of 1024, 4200 for 4096")).Apply(k),
	)
})

// between takes a whole number; remark goes on after the bounds.
func between(least, most int64, remark string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		var s string
		if err := ctx.Scan.PopValueInto("number", &s); err != nil {
			return err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%s: give %d to %d%s", s, least, most, remark)
		}
		target.Set(reflect.ValueOf(n).Convert(target.Type()))
		return nil
	}
}

// decodeDuration takes a time as Go writes it, or a bare number of seconds, as perftest's -D.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("time", &s); err != nil {
		return err
	}
	d, err := time.ParseDuration(s)
	if seconds, plain := strconv.ParseFloat(s, 64); plain == nil {
		d, err = time.ParseDuration(strconv.FormatFloat(seconds, 'f', -1, 64) + "s")
	}
	if err != nil {
		return fmt.Errorf("%q is no time: give one such as 500ms, 5s or 2m; a bare number is of seconds", s)
	}
	target.SetInt(int64(d))
	return nil
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
