//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/internal/namespace"
)

// The namespace has a bridge for TAPs and a veth pair for packet sockets. Another veth pair leads
// to a second namespace, for the kernel's own sockets: within one namespace the kernel would not
// use the pair.
const (
	bridge    = "br0"
	bridgeMTU = 9000
)

var veths, sockets = [2]string{"v0", "v1"}, [2]string{"k0", "k1"}

// lab is the environment of the programs: network namespaces without a name, which end with this
// process and its children.
type lab struct {
	inside    netns.NsHandle
	beyond    netns.NsHandle // for servers on the kernel's sockets
	dir       string         // of the programs
	softrnic  string
	yard      string
	libs      string          // directory of the drop-in libraries; created on first use
	figures   string          // testdata/figures.c, built
	prefix    string          // where all of SoftRNIC is installed; created on first use
	prepared  map[string]bool // directories of programs that can start
	duration  time.Duration
	pprof     string
	profiling bool
	env       []string // additional environment of the programs
	anywhere  bool     // programs may use all processors, whatever their side
}

func newLab(ctx context.Context, o *options) (l *lab, err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("making a network namespace needs root")
	}
	l = &lab{inside: netns.None(), beyond: netns.None(), duration: o.duration, softrnic: o.softrnic, yard: o.yard, libs: o.libs,
		figures: o.figures, pprof: o.pprof, prepared: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.dir, err = os.MkdirTemp("", "goals"); err != nil {
		return l, err
	}
	if err := os.Mkdir(filepath.Join(l.dir, "run"), 0o700); err != nil {
		return l, err
	}
	if err := l.build(ctx); err != nil {
		return l, err
	}
	if l.pprof != "" {
		if err := os.MkdirAll(l.pprof, 0o755); err != nil {
			return l, fmt.Errorf("-pprof: %w", err)
		}
	}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		made <- l.createNamespaces()
	}()
	return l, <-made
}

// build builds the programs that no flag names. At real-time priority, name all of them: a compiler
// at that priority may occupy the processors forever.
func (l *lab) build(ctx context.Context) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for _, p := range []struct {
		program         *string
		source, profile string
	}{{&l.softrnic, "/cmd/softrnic", filepath.Join(string(bytes.TrimSpace(root)), "cmd/softrnic/release.pgo")},
		{&l.yard, "/tests/bench/yardstick", "off"}} {
		if *p.program != "" {
			continue
		}
		*p.program = filepath.Join(l.dir, filepath.Base(p.source))
		// As cmd/dropin/build does: the memory of a program's start depends on it.
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-pgo="+p.profile, "-o", *p.program, module+p.source)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", build, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

const module = "github.com/softrnic/softrnic"

// createNamespaces creates the namespaces, on a thread that is not reused.
func (l *lab) createNamespaces() (err error) {
	for _, ns := range []*netns.NsHandle{&l.beyond, &l.inside} {
		if *ns, err = netns.New(); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
	}
	// The kernel must not send packets of its own.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, made := range []netlink.Link{
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge, MTU: bridgeMTU}, MulticastSnooping: new(bool)},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: veths[0], MTU: bridgeMTU}, PeerName: veths[1], PeerMTU: bridgeMTU},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: sockets[0]}, PeerName: sockets[1], PeerNamespace: netlink.NsFd(l.beyond)},
	} {
		if err := netlink.LinkAdd(made); err != nil {
			return fmt.Errorf("make %s %s: %w", made.Type(), made.Attrs().Name, err)
		}
	}
	for _, name := range []string{"lo", bridge, veths[0], veths[1]} {
		if err := up(name); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	if err := address(sockets[0], socketAddrs[0]); err != nil {
		return err
	}
	return namespace.Do(l.beyond, func() error { return address(sockets[1], socketAddrs[1]) })
}

// address gives an interface of the kernel an address, and sets it up.
func address(name, cidr string) error {
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	v, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.AddrAdd(v, a)
	}
	if err == nil {
		err = netlink.LinkSetUp(v)
	}
	if err != nil {
		return fmt.Errorf("%s: address %s: %w", name, cidr, err)
	}
	return nil
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// setMTU sets the MTU of the veth pair for packet sockets.
func (l *lab) setMTU(mtu int) error {
	return namespace.Do(l.inside, func() error { return errors.Join(setMTU(veths[0], mtu), setMTU(veths[1], mtu)) })
}

// setSocketMTU sets the MTU of the pair between the namespaces.
func (l *lab) setSocketMTU(mtu int) error {
	return errors.Join(
		namespace.Do(l.inside, func() error { return setMTU(sockets[0], mtu) }),
		namespace.Do(l.beyond, func() error { return setMTU(sockets[1], mtu) }))
}

func setMTU(name string, mtu int) error {
	v, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(v, mtu)
	}
	return err
}

// Close removes everything except the namespace.
func (l *lab) Close() error {
	var errs []error
	for _, ns := range []*netns.NsHandle{&l.inside, &l.beyond} {
		if ns.IsOpen() {
			errs = append(errs, ns.Close())
		}
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// programTimeout limits one run of a program.
const programTimeout = 30 * time.Second

// side selects the processors of a program.
type side int

const (
	client side = iota // number 0
	server             // number 1
	both               // any
)

// start starts a program in a namespace. It is killed when ctx or this program ends.
func (l *lab) start(ctx context.Context, in netns.NsHandle, on side, stdout, stderr io.Writer, program string, args ...string) (*exec.Cmd,
	error) {
	if l.anywhere {
		on = both
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// For shared-memory segments.
	cmd.Env = append(append(os.Environ(), l.env...), "XDG_RUNTIME_DIR="+filepath.Join(l.dir, "run"))
	// ^C is for this program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, namespace.Do(in, func() error { return startOn(on, cmd) })
}

// startOn starts a program on a side's processor, as the yardstick does. The caller must have
// locked its thread.
func startOn(on side, cmd *exec.Cmd) (err error) {
	if on == both {
		return cmd.Start()
	}
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("processors: %w", err)
	}
	one.Set(int(on))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("processor %d for %s: %w", on, cmd.Path, err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &all)) }()
	return cmd.Start()
}

// output runs a program and decodes the JSON that it prints.
func (l *lab) output(ctx context.Context, on side, into any, program string, args ...string) error {
	_, err := l.outputOf(ctx, on, into, program, args...)
	return err
}

// outputOf is output, and returns the state of the program, which has ended.
func (l *lab) outputOf(ctx context.Context, on side, into any, program string, args ...string) (*os.ProcessState, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd, err := l.start(ctx, l.inside, on, &stdout, &stderr, program, args...)
	if err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), errors.Join(err, ctx.Err()), bytes.TrimSpace(stderr.Bytes()))
	}
	if err := json.Unmarshal(stdout.Bytes(), into); err != nil {
		return nil, fmt.Errorf("%s printed %.200q: %w", strings.Join(cmd.Args, " "), stdout.Bytes(), err)
	}
	return cmd.ProcessState, nil
}

// yardstickResult is the output of tests/bench/yardstick.
type yardstickResult struct {
	Gbps     float64 `json:"gbit_per_second"`
	CPUPerGB float64 `json:"cpu_seconds_per_gb"`
	HalfTrip float64 `json:"half_round_trip_us"`
}

func (l *lab) yardstick(ctx context.Context, args ...string) (r yardstickResult, err error) {
	if args[0] != "ping" {
		args = append(args, "-duration", l.duration.String())
	}
	err = l.output(ctx, both, &r, l.yard, args...)
	return r, err
}

// perfResult is a line of softrnic perf.
type perfResult struct {
	Over       string  `json:"over"`
	Size       int     `json:"message_size"`
	Iterations float64 `json:"iterations"`
	Gbps       float64 `json:"gbit_per_second"`
	Mpps       float64 `json:"million_messages_per_second"`
	CPUPerGB   float64 `json:"cpu_seconds_per_gb"`
	PeerPerGB  float64 `json:"peer_cpu_seconds_per_gb"`
	Allocs     float64 `json:"allocations_per_message"`
	PeerAllocs float64 `json:"peer_allocations_per_message"`
	Latency    struct {
		Typical float64 `json:"typical"`
	} `json:"latency_us"`
}

// perf runs softrnic perf's client.
func (l *lab) perf(ctx context.Context, on side, server string, args []string) ([]perfResult, error) {
	var r struct {
		Results []perfResult `json:"results"`
	}
	flags := append([]string{server, "--json", "--duration", l.duration.String()}, args[2:]...)
	flags = append(flags, l.profile("client", args)...)
	err := l.output(ctx, on, &r, l.softrnic, append([]string{"perf", args[0], args[1]}, flags...)...)
	return r.Results, err
}

// profile returns the flag that profiles a side, if profiling is on.
func (l *lab) profile(who string, args []string) []string {
	if !l.profiling || l.pprof == "" {
		return nil
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/:,= ", r) {
			return '_'
		}
		return r
	}, strings.Join(args, " "))
	return []string{"--pprof", filepath.Join(l.pprof, name+"."+who+".pprof")}
}

// socketAddrs are the kernel's addresses in the two namespaces. The kernel also answers for its
// address on the bridge, so the nodes there have others.
var socketAddrs = [2]string{"10.89.0.1/24", "10.89.0.2/24"}

// node is a side of perf: its link, its address, and flags that it alone has.
type node struct {
	link, addr string
	flags      []string
}

func nodes(links, addrs [2]string) [2]node {
	return [2]node{{links[0], addrs[0], nil}, {links[1], addrs[1], nil}}
}

// args returns the node's flags.
func (n *node) args() []string {
	return append([]string{"--link", n.link, "--addr", n.addr}, n.flags...)
}

// run runs the server in the given namespace, and the client in the lab's. Both have the flags.
func (l *lab) run(ctx context.Context, in netns.NsHandle, sides [2]node, flags []string, args ...string) (_ []perfResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	var stderr bytes.Buffer
	args = append(slices.Clip(args), sides[client].args()...)
	serve := slices.Concat([]string{"perf", args[0], args[1]}, sides[server].args(), flags)
	serve = append(serve, l.profile("server", args)...)
	cmd, err := l.start(ctx, in, server, stdout, &stderr, l.softrnic, serve...)
	_ = stdout.Close()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			cancel()
		}
		if ended := cmd.Wait(); ended != nil && err == nil {
			err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), ended, bytes.TrimSpace(stderr.Bytes()))
		}
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() { // its message when it waits
		return nil, fmt.Errorf("%s ends: %s", strings.Join(cmd.Args, " "), bytes.TrimSpace(stderr.Bytes()))
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	serverAddr, _, _ := strings.Cut(sides[server].addr, "/")
	return l.perf(ctx, client, serverAddr, append(args, flags...))
}
