//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "fault.h"
#include "softrnic.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/live"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/verbs"
)

// stack is a node. C programs see it as one or two devices, one for each wire protocol, because
// their QPs have no transport attribute.
type stack struct {
	node *node.Node
	pipe bool // its link is a pipe
}

// device is a stack as a device of one wire protocol.
type device struct {
	*stack
	dev       *verbs.Device
	name      string
	transport verbs.Transport
	card      *dropin.Card // nil: none
}

// stacks are the stacks of the process.
var stacks state

type state struct {
	once    sync.Once
	err     error
	cfg     dropin.Config
	devices []*device
	nodes   []*node.Node // one for each rail
	ends    []func()     // remove the published status (see package status)
	log     atomic.Pointer[slog.Logger]
}

// open opens the stacks, once.
func (s *state) open() error {
	s.once.Do(func() {
		if s.err = s.doOpen(); s.err != nil {
			fmt.Fprintln(os.Stderr, "softrnic:", s.err)
		}
	})
	return s.err
}

func (s *state) doOpen() (err error) {
	C.fault_restore_stacks()
	inheritEnvironment()
	inContainer, err := dropin.EnterContainer(directory())
	if err != nil {
		return err
	}
	if s.cfg, err = dropin.FromEnv(os.Getenv); err != nil {
		return err
	}
	for _, r := range s.cfg.Rails {
		n, err := r.Flags.Open(&cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Command: s.command()})
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, n)
		s.log.Store(n.Log)
		if s.cfg.Runner != 0 {
			n.Dev.MeasureLatency()
		}
		st := &stack{n, r.Flags.Medium() == "pipe"}
		pair := []*device{{st, n.Dev, r.RoCE, verbs.RoCEv2, r.OfDevice(false)}, {st, n.Dev, r.IWARP, verbs.IWARP, r.OfDevice(true)}}
		if s.cfg.Transports[0] == verbs.IWARP {
			slices.Reverse(pair) // some programs query the first device and use the other
		}
		for _, d := range pair {
			if d.name != "" {
				s.devices = append(s.devices, d)
			}
		}
		go distributeAsyncEvents(n.Dev)
		inSysfs := false
		if d, err := counters(&r, n.Dev, inContainer); err == nil {
			s.ends, inSysfs = append(s.ends, d.Follow()), true
		}
		if shown := s.cfg.Top || s.cfg.Runner != 0 || n.Impairment != nil || r.Flags.Fault != nil || n.Tunnel != nil; shown || inSysfs {
			s.ends = append(s.ends, status.PublishNode(n, s.cfg.Runner, !shown, r.RoCE, r.IWARP))
		}
	}
	if s.cfg.Rails[0].Flags.Capture != "" {
		go s.flushCaptures()
	}
	initFaultHandlers(s.nodes)
	return nil
}

// counters opens the directory of a rail's counters. A softrnic run has created it. In a container,
// the first process does so, which may be this one.
func counters(r *dropin.Rail, dev *verbs.Device, inContainer bool) (*live.Directory, error) {
	if inContainer {
		return live.Create(r, dev, true)
	}
	return live.Open(r, dev)
}

// captureInterval is the time between two writes to a capture. A program that a signal kills loses
// the packets since the last.
const captureInterval = 100 * time.Millisecond

// flushCaptures writes captured packets to their files as long as the process runs.
func (s *state) flushCaptures() {
	for range time.Tick(captureInterval) {
		for _, n := range s.nodes {
			_ = n.FlushCapture() // shutdown reports the error
		}
	}
}

// command returns the file of the command softrnic, which can run as a hub.
func (s *state) command() string {
	if s.cfg.Command != "" {
		return s.cfg.Command
	}
	if dir := directory(); dir != "" {
		if file := dropin.CommandBeside(dir); file != "" {
			return file
		}
	}
	return "softrnic" // in PATH
}

// directory returns the directory of this library, or "" if it cannot be found.
func directory() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		if i := strings.IndexByte(line, '/'); i >= 0 && filepath.Base(strings.TrimSpace(line)) == "libsoftrnic.so" {
			return filepath.Dir(line[i:])
		}
	}
	return ""
}

// logError logs the error of a call, if any. The program gets only its errno.
func (s *state) logError(err error) {
	if log := s.log.Load(); log != nil && err != nil {
		log.Debug("a call has failed", "error", err)
	}
}

// device returns a device by its number in C's list, or nil.
func (s *state) device(i int) *device {
	if i < 0 || i >= len(s.devices) {
		return nil
	}
	return s.devices[i]
}

// verbsDevices returns the devices of package verbs, each once.
func (s *state) verbsDevices() (devs []*verbs.Device) {
	for _, d := range s.devices {
		if !slices.Contains(devs, d.dev) {
			devs = append(devs, d.dev)
		}
	}
	return devs
}

// addrs yields the addresses of the devices.
func (s *state) addrs() iter.Seq2[netip.Addr, *device] {
	return func(yield func(netip.Addr, *device) bool) {
		for _, d := range s.devices {
			table, _ := d.dev.Provider().GIDTable(1) // an error means that the device is closed
			for _, e := range table {
				if !yield(e.GID.Addr().Unmap(), d) {
					return
				}
			}
		}
	}
}

// shutdownTimeout is the time that an exiting process waits for its peers to acknowledge the end of
// connections. This takes more than two seconds only while there is no hub. Most hubs start within
// the timeout.
const shutdownTimeout = 10 * time.Second

// shutdown shuts down all devices at once, and closes their links.
func (s *state) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	errs := make([]error, len(s.nodes))
	var all sync.WaitGroup
	for i, n := range s.nodes {
		all.Go(func() {
			began := time.Now()
			errs[i] = n.Dev.Shutdown(ctx)
			n.Log.Debug("the device is shut down", "after", time.Since(began), "error", errs[i])
		})
	}
	all.Wait()
	if s.cfg.Counters != "" && len(s.nodes) > 0 {
		var devices []*verbs.Device
		for _, n := range s.nodes {
			devices = append(devices, n.Dev)
		}
		if err := dropin.AppendCounters(s.cfg.Counters, devices...); err != nil {
			s.notWritten(err)
		}
	}
	for _, n := range s.nodes {
		for _, err := range []error{n.TraceErr(), n.FlushCapture(), n.Faults.AppendSites()} {
			if err != nil {
				s.notWritten(err)
			}
		}
	}
	for _, end := range s.ends {
		end()
	}
	for i, n := range s.nodes { // removes files and sockets of the links, and deregisters from the hub
		all.Go(func() { errs[i] = errors.Join(errs[i], n.Host.Close()) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// notWritten reports that the trace, the capture or the counters could not be written. It reports
// this to the program's user, and to softrnic run if that waits for the program.
func (s *state) notWritten(err error) {
	fmt.Fprintln(os.Stderr, "softrnic:", err)
	if s.cfg.Whole != "" {
		_ = os.Truncate(s.cfg.Whole, 0) // this works even if the disk is full
	}
}

// guid returns the device's GUID in network byte order, as libibverbs has it.
func (d *device) guid() C.uint64_t { return bigEndian(dropin.GUID(d.dev, d.transport == verbs.IWARP)) }

// bigEndian converts a GUID from the order of this little-endian machine to network byte order.
func bigEndian(g verbs.GUID) C.uint64_t { return C.uint64_t(bits.ReverseBytes64(uint64(g))) }

// receivesOnItsOwn reports whether the device is as fast without reception by the program's
// threads. This holds for a pipe, which is in this process: each port has a goroutine that receives
// while others poll.
func (d *device) receivesOnItsOwn() bool { return d.pipe }

// arrivals returns the words that show whether packets have arrived, or nil.
func (d *device) arrivals() *C.struct_sr_arrivals {
	if d.node.Segment == nil {
		return nil
	}
	b, err := d.node.Segment.Arrivals()
	if err != nil {
		d.node.Log.Debug("programs do not see when packets arrive", "error", err)
		return nil
	}
	return (*C.struct_sr_arrivals)(unsafe.Pointer(unsafe.SliceData(b)))
}

func (d *device) netdev() string { return d.node.Host.NICs()[0].Name() }

// ifindex returns the index of a network interface, or 0.
func ifindex(name string) uint32 {
	if ifce, err := net.InterfaceByName(name); err == nil {
		return uint32(ifce.Index)
	}
	return 0
}

// gid returns an entry of the device's GID table. iWARP has one entry, the MAC address, as in
// Linux's siw.
func (d *device) gid(port, index int) (verbs.GIDEntry, error) {
	if port < 0 || port > 255 {
		return verbs.GIDEntry{}, syscall.EINVAL
	}
	attr, err := d.dev.Provider().QueryPort(uint8(port))
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	if d.transport == verbs.IWARP {
		if index != 0 {
			return verbs.GIDEntry{}, syscall.EINVAL
		}
		e := verbs.GIDEntry{PortNum: uint8(port), NetDev: d.netdev()}
		copy(e.GID[:], d.node.Host.NICs()[0].MAC())
		return e, nil
	}
	if index < 0 || index >= attr.GIDTblLen {
		return verbs.GIDEntry{}, syscall.EINVAL
	}
	table, err := d.dev.Provider().GIDTable(uint8(port))
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	for _, e := range table {
		if e.Index == index {
			return e, nil
		}
	}
	return verbs.GIDEntry{}, syscall.ENODATA
}
