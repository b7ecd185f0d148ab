//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Message sizes of the bandwidth rows in bytes, and the memory on either side that messages use in
// turn. The yardstick uses the same.
const (
	small, large = 64 << 10, 1 << 20
	memory       = 16 << 20
)

// pathMTU is a RoCE path MTU, the link MTU with room for it, the packets of a superframe, and the
// goals of messages of 64 KiB and 1 MiB.
type pathMTU struct {
	payload, link, packets int
	goals                  [2]float64
}

var pathMTUs = []pathMTU{{1024, 1500, 62, [2]float64{1, 1.2}}, {4096, 4200, 15, [2]float64{0.95, 1.25}}}

// path is a path between two nodes: the links of client and server, and the yardstick's command for
// the same path.
type path struct {
	name      string
	links     [2]string
	yardstick []string
	mtu       func(l *lab, mtu int) (flags []string, err error)
	goals     map[int][2]float64 // by path MTU, instead of pathMTU's
}

// tapMTU returns the flag that creates TAP interfaces with an MTU.
func tapMTU(_ *lab, mtu int) ([]string, error) { return mtuFlags(mtu), nil }
func mtuFlags(mtu int) []string                { return []string{"--mtu", strconv.Itoa(mtu)} }

const tap0, tap1 = "tap:rnic0,bridge=" + bridge, "tap:rnic1,bridge=" + bridge

var (
	overTAP    = path{"TAP", [2]string{tap0, tap1}, []string{"tap", "-bridge", bridge}, tapMTU, nil}
	overPacket = path{"AF_PACKET", [2]string{"packet:" + veths[0], "packet:" + veths[1]},
		[]string{"packet", "-on", strings.Join(veths[:], ",")},
		func(l *lab, mtu int) ([]string, error) { return nil, l.setMTU(mtu) }, map[int][2]float64{4096: {1.05, 1.2}}}
)

// experiments returns all experiments, in the order of the table.
func experiments() (all []*experiment) {
	add := func(group string, e *experiment) {
		for _, r := range e.rows {
			if r.Group == "" {
				r.Group = group
			}
		}
		all = append(all, e)
	}
	ops, transports := []string{"write", "send", "read"}, []string{"RoCEv2", "iWARP"}
	for _, p := range []path{overTAP, overPacket} {
		for _, m := range pathMTUs {
			for _, op := range ops {
				add(fmt.Sprintf("WRITE, SEND, READ, RoCEv2, two processes, %s, path MTU %d", p.name, m.payload), superframes(p, m, op))
			}
		}
	}
	for _, m := range pathMTUs {
		for _, op := range ops {
			add("the same over TAP without AVX-512", withoutAVX512(m, op))
		}
	}
	for _, m := range pathMTUs {
		for _, op := range ops {
			add("the same over TAP with mapped memory", mapped(m, op))
		}
	}
	for _, m := range pathMTUs {
		for _, op := range ops {
			add("the same over TAP to a peer without superframes", singlePackets(m, op))
		}
	}
	for _, mtu := range []int{1500, 9000} {
		for _, op := range ops {
			add("WRITE, SEND, READ, iWARP with CRC, TAP with TSO", iwarp(mtu, op))
		}
	}
	add("WRITE, iWARP with CRC, the kernel's sockets", iwarpOnSockets())
	for _, t := range transports {
		for _, bytes := range []int{small, memory} {
			add("WRITE 64 KiB in process, direct", inProcess(t, bytes))
		}
	}
	for _, t := range transports {
		add("WRITE 8 bytes in process, direct, one goroutine a side", rateInProcess(t))
	}
	add("WRITE 8 bytes, RoCEv2, TAP, 8 QPs", rateOverTAP())
	for _, p := range []path{overTAP, overPacket} {
		for _, load := range [][2]string{{"write", "bw"}, {"write", "rate"}, {"send", "rate"}} {
			add("two queues, RoCEv2, "+p.name, queues(p, load[0], load[1]))
		}
	}
	add("SEND 8 bytes, half round trip, TAP, polling", latencyOverTAP())
	for _, m := range pathMTUs {
		add("WRITE 64 KiB, RoCEv2, two processes, shared memory", shmBandwidth(m))
	}
	for _, m := range pathMTUs {
		add("WRITE 64 KiB, RoCEv2, shared memory, of a bare ring", shmOfRing(m))
	}
	add("SEND 8 bytes, half round trip, shared memory, polling", shmLatency())
	for _, m := range pathMTUs {
		add("WRITE 64 KiB, RoCEv2, two processes, the kernel's sockets", socketBandwidth(m))
	}
	add("SEND 8 bytes, half round trip, the kernel's sockets, polling", socketLatency())
	for _, m := range pathMTUs {
		add("WRITE 64 KiB, RoCEv2, through hubs", hubBandwidth(m))
	}
	add("WRITE 64 KiB, RoCEv2, through hubs, 8 processes at once", hubMany())
	add("SEND 8 bytes, half round trip, through hubs, polling", hubLatency())
	add("WRITE 64 KiB, RoCEv2, two nodes of one hub", besideHubBandwidth())
	add("SEND 8 bytes, half round trip, two nodes of one hub, polling", besideHubLatency())
	for _, e := range rsockets() {
		add("rsockets: "+e.rows[0].What, e)
	}
	for _, e := range nvmeExperiments() {
		add("NVMe: "+e.rows[0].What, e)
	}
	for _, e := range programExperiments() {
		add("programs: "+e.rows[0].What, e)
	}
	for _, e := range secureExperiments() {
		add("encrypted: "+e.rows[0].What, e)
	}
	for _, e := range dropinExperiments() {
		add("the drop-in libraries: "+e.rows[0].What, e)
	}
	for _, t := range transports {
		add("SEND 8 bytes, half round trip, in process, direct", latencyInProcess(t))
	}
	for _, op := range ops {
		add("WRITE, SEND, READ 64 KiB, delay 100 µs, 1 % loss between SoftRNICs with selective repeat",
			lossy(op, "1", "between SoftRNICs with selective repeat", selective))
	}
	for _, op := range ops {
		add("the same, 0.1 % loss, go-back-N", lossy(op, "0.1", "go-back-N, the default"))
	}
	for _, e := range allocations() {
		add("allocations per message, each path", e)
	}
	return all
}

// bandwidthRows returns the rows of an operation's two sizes.
func bandwidthRows(op, where, against string, goals [2]float64) []*row {
	var rows []*row
	for i, size := range []string{"64 KiB", "1 MiB"} {
		what := fmt.Sprintf("%s %s, %s", strings.ToUpper(op), size, where)
		rows = append(rows, &row{Group: where + ", " + size, What: what, Goal: goals[i], Unit: "Gbit/s", Against: against})
	}
	return rows
}

// bothSizes are perf's flags for the two sizes.
var bothSizes = []string{"--size", strconv.Itoa(small), "--size", strconv.Itoa(large), "--buffer", strconv.Itoa(memory)}

// from returns the yardstick's flag that makes it send on the side where an operation's data comes
// from. If the direction changes between runs, the kernel frees frames on another processor than
// before, and both programs are slow for a while.
func from(op string) []string {
	data := client
	if op == "read" {
		data = server
	}
	return []string{"-cpu", strconv.Itoa(int(data))}
}

// perFrame is the yardstick's work with -work.
const perFrame = "superframes + ICRC + copies"

// superframes compares an operation with frames of many packets, with ICRCs and copies.
func superframes(p path, m pathMTU, op string) *experiment {
	goals, own := p.goals[m.payload]
	if !own {
		goals = m.goals
	}
	rows := bandwidthRows(op, fmt.Sprintf("RoCEv2, %s, path MTU %d", p.name, m.payload), perFrame, goals)
	if p.name == overTAP.name && op == "write" {
		rows = append(rows, &row{Group: "CPU seconds per GB, RoCEv2, TAP",
			What: fmt.Sprintf("CPU seconds per GB of both sides, WRITE 64 KiB, RoCEv2, TAP, path MTU %d", m.payload),
			Goal: 1, AtMost: true, Unit: "s/GB", Against: perFrame})
	}
	return ofSuperframes(rows, p, m, op)
}

// mapped registers memory in the way that C programs do.
func mapped(m pathMTU, op string) *experiment {
	rows := bandwidthRows(op, fmt.Sprintf("RoCEv2, TAP, path MTU %d, mapped memory", m.payload), perFrame, m.goals)
	return ofSuperframes(rows, overTAP, m, op, "--mapped")
}

// withoutAVX512 limits SoftRNIC to AVX2. The yardstick does not use package crc and has no limit.
func withoutAVX512(m pathMTU, op string) *experiment {
	rows := bandwidthRows(op, fmt.Sprintf("RoCEv2, TAP, path MTU %d, without AVX-512", m.payload), perFrame, [2]float64{0.9, 1})
	e := ofSuperframes(rows, overTAP, m, op)
	with := e.round
	e.round = func(ctx context.Context, l *lab) error {
		l.env = []string{"SOFTRNIC_CRC=avx2"}
		defer func() { l.env = nil }()
		return with(ctx, l)
	}
	return e
}

// ofSuperframes measures the rows of superframes. The flags are added to those of perf's client.
func ofSuperframes(rows []*row, p path, m pathMTU, op string, more ...string) *experiment {
	return besideYardstick(rows, p, m, op, []string{"-work", "-packets", strconv.Itoa(m.packets), "-memory", strconv.Itoa(memory)}, more...)
}

// besideYardstick compares an operation with the yardstick, which has flags for its packets and its
// work.
func besideYardstick(rows []*row, p path, m pathMTU, op string, work []string, more ...string) *experiment {
	return &experiment{rows, func(ctx context.Context, l *lab) error {
		y, err := l.yardstick(ctx, slices.Concat(p.yardstick, from(op), []string{"-payload", strconv.Itoa(m.payload)}, work)...)
		if err != nil {
			return err
		}
		flags, err := p.mtu(l, m.link)
		if err != nil {
			return err
		}
		r, err := between(p.links, flags, slices.Concat([]string{op, "bw"}, bothSizes, more)...)(ctx, l)
		if err != nil {
			return err
		}
		for i, row := range rows {
			if i < 2 {
				row.add(r[i].Gbps, y.Gbps)
			} else {
				row.add(r[0].CPUPerGB+r[0].PeerPerGB, y.CPUPerGB)
			}
		}
		return nil
	}}
}

// singlePackets limits the receiving side to one packet per frame, and compares with one write per
// packet.
func singlePackets(m pathMTU, op string) *experiment {
	rows := bandwidthRows(op, fmt.Sprintf("RoCEv2, TAP, path MTU %d, to a peer without superframes", m.payload), "one write a packet",
		[2]float64{0.85, 0.85})
	p, receiver := overTAP, 1
	if op == "read" {
		receiver = 0
	}
	p.links[receiver] += ",offloads=off"
	return besideYardstick(rows, p, m, op, []string{"-packets", "1"})
}

// iwarp compares an operation with the TCP of the same stack over the same devices. Both sides
// sleep while they wait: for TCP data, and for completions.
func iwarp(mtu int, op string) *experiment {
	rows := bandwidthRows(op, fmt.Sprintf("iWARP with CRC, TAP with TSO, MTU %d", mtu), "the stack's TCP", [2]float64{1, 1})
	args := append([]string{op, "bw", "--transport", "iwarp", "--tcp", "--wait", "event"}, bothSizes...)
	return besideFloor(besideTCP(rows, between(overTAP.links, mtuFlags(mtu), args...)), crcToo)
}

// iwarpOnSockets compares WRITE with the kernel's TCP, which carries it too.
func iwarpOnSockets() *experiment {
	rows := bandwidthRows("write", "iWARP with CRC, the kernel's sockets, veth, MTU 1500", "the kernel's TCP", [2]float64{0.85, 0.85})
	args := slices.Concat([]string{"write", "bw", "--transport", "iwarp", "--wait", "event"}, bothSizes, kernelTCP)
	measure := overSockets(nil, args...)
	e := besideTCP(rows, func(ctx context.Context, l *lab) ([]perfResult, error) {
		if err := l.setSocketMTU(1500); err != nil { // other rows change it
			return nil, err
		}
		return measure(ctx, l)
	})
	return besideFloor(e, checkedToo)
}

// besideTCP fills a row per size from a measurement of QPs of all sizes and then of TCP.
func besideTCP(rows []*row, measure measurement) *experiment {
	return &experiment{rows, func(ctx context.Context, l *lab) error {
		r, err := measure(ctx, l)
		if err != nil {
			return err
		}
		for i, row := range rows {
			row.add(r[i].Gbps, r[i+len(rows)].Gbps)
		}
		return nil
	}}
}

// inProcess compares with a copy of the same amount of memory.
func inProcess(transport string, bytes int) *experiment {
	size, memory := strconv.Itoa(small), strconv.Itoa(bytes)
	return single(&row{What: fmt.Sprintf("WRITE 64 KiB, in process, direct, of %s QPs, %d KiB on each side", transport, bytes>>10),
		Goal: 0.7, Unit: "Gbit/s", Against: "one memory copy"},
		gbps(loopback("write", "bw", "--direct", "--transport", strings.ToLower(transport), "--size", size, "--buffer", memory)),
		yardGbps("copy", "-size", size, "-memory", memory))
}

func rateInProcess(transport string) *experiment {
	return single(&row{What: "WRITE 8 bytes, in process, direct, of " + transport + " QPs, one goroutine a side",
		Goal: 3, Unit: "M/s", only: true},
		mpps(loopback("write", "rate", "--direct", "--transport", strings.ToLower(transport))))
}

func rateOverTAP() *experiment {
	return single(&row{What: "WRITE 8 bytes, RoCEv2, TAP, 8 QPs", Goal: 1, Unit: "M/s", only: true},
		mpps(between(overTAP.links, nil, "write", "rate", "--qps", "8")))
}

// polling are perf's flags for the lowest latency.
var polling = []string{"--wait", "poll"}

// tapLatency is half a round trip over TAP, polling.
var tapLatency = halfTrip(between([2]string{tap0 + ",wait=poll", tap1 + ",wait=poll"}, polling, "send", "lat"))

func latencyOverTAP() *experiment {
	return single(&row{What: "SEND 8 bytes, RoCEv2, TAP, half round trip, polling", Goal: 1.2, AtMost: true, Unit: "µs",
		Against: "a raw 64-byte frame's"}, tapLatency, yardHalfTrip("ping", "-bridge", bridge))
}

// overShm is a shared-memory segment for the two processes only.
var overShm = [2]string{"shm:goals", "shm:goals"}

// bandwidthFlags are perf's flags for WRITE 64 KiB.
var bandwidthFlags = []string{"write", "bw", "--size", strconv.Itoa(small), "--buffer", strconv.Itoa(memory)}

// bandwidth measures WRITE 64 KiB between two links at a path MTU.
func bandwidth(links [2]string, m pathMTU) sample {
	return gbps(between(links, mtuFlags(m.link), bandwidthFlags...))
}

// shmBandwidth compares with TAP at the same path MTU.
func shmBandwidth(m pathMTU) *experiment {
	return single(&row{What: fmt.Sprintf("WRITE 64 KiB, RoCEv2, shm, path MTU %d", m.payload), Goal: 3, Unit: "Gbit/s", Against: "TAP's"},
		bandwidth(overShm, m), bandwidth(overTAP.links, m))
}

// shmOfRing compares with a ring in memory: one thread copies to it, another from it.
func shmOfRing(m pathMTU) *experiment {
	return single(&row{What: fmt.Sprintf("WRITE 64 KiB, RoCEv2, shm, path MTU %d, both copies", m.payload), Goal: 0.5, Unit: "Gbit/s",
		Against: "a bare ring"},
		bandwidth(overShm, m), yardGbps("ring", "-size", strconv.Itoa(small), "-memory", strconv.Itoa(memory)))
}

// socketBandwidth compares with TAP at the same MTU. A veth pair between two namespaces has as many
// devices as TAP and bridge.
func socketBandwidth(m pathMTU) *experiment {
	return single(&row{What: fmt.Sprintf("WRITE 64 KiB, RoCEv2, the kernel's sockets, veth, path MTU %d", m.payload), Goal: 0.9,
		Unit: "Gbit/s", Against: "TAP's"},
		withSocketMTU(m, gbps(overSockets(nil, bandwidthFlags...))), bandwidth(overTAP.links, m))
}

// withSocketMTU sets the MTU of the kernel's interfaces before a measurement.
func withSocketMTU(m pathMTU, measure sample) sample {
	return func(ctx context.Context, l *lab) (float64, error) {
		if err := l.setSocketMTU(m.link); err != nil {
			return 0, err
		}
		return measure(ctx, l)
	}
}

// shmLatency compares with TAP, polling.
func shmLatency() *experiment {
	return single(&row{What: "SEND 8 bytes, RoCEv2, shm, half round trip, polling", Goal: 0.4, AtMost: true, Unit: "µs", Against: "TAP's"},
		halfTrip(between(overShm, polling, "send", "lat")), tapLatency)
}

// socketLatency compares with TAP, polling.
func socketLatency() *experiment {
	return single(&row{What: "SEND 8 bytes, RoCEv2, the kernel's sockets, veth, half round trip, polling", Goal: 1.5, AtMost: true,
		Unit: "µs", Against: "TAP's"}, halfTrip(overSockets(nil, latencyArgs...)), tapLatency)
}

func latencyInProcess(transport string) *experiment {
	args := slices.Concat(latencyArgs, []string{"--direct", "--transport", strings.ToLower(transport)})
	return single(&row{What: "SEND 8 bytes, in process, direct, of " + transport + " QPs, half round trip", Goal: 1, AtMost: true,
		Unit: "µs", only: true}, halfTrip(loopback(args...)))
}

// lossy compares with the same path without loss. The path is in one process and has 100 µs each
// way.
func lossy(op, percent, peer string, flags ...string) *experiment {
	over := func(impair string) sample {
		return gbps(loopback(append([]string{op, "bw", "--impair", impair}, flags...)...))
	}
	return single(&row{What: fmt.Sprintf("%s 64 KiB, RoCEv2, delay 100 µs, %s %% loss %s", strings.ToUpper(op), percent, peer), Goal: 0.7,
		Unit: "Gbit/s", Against: "without loss"}, over("delay=100us,loss="+percent+"%"), over("delay=100us"))
}

// allocations measures all allocations of both processes, including those of the runtime for
// collections and timers. A path that allocates for each message has 1 or more. The steady state
// counts. So between processes long messages are sent four times and the fourth run is measured:
// gVisor's pools of buffers grow to the maximum that was in flight, a few hundred. The time is
// doubled, so that the 20 or so objects of a measurement itself do not matter.
func allocations() (all []*experiment) {
	steady := func(p path, args ...string) measurement {
		return func(ctx context.Context, l *lab) ([]perfResult, error) {
			long := strconv.Itoa(small)
			args := append(args, "--size", long, "--size", long, "--size", long, "--duration", (2 * l.duration).String())
			r, err := between(p.links, nil, args...)(ctx, l)
			if err != nil {
				return nil, err
			}
			return []perfResult{r[0], r[4]}, nil
		}
	}
	onTAP := func(args ...string) measurement { return steady(overTAP, args...) }
	onPacket := func(args ...string) measurement { return steady(overPacket, args...) }
	inside := func(args ...string) measurement { return loopback(append(args, "--direct")...) }
	where := []struct {
		name, transport string
		measure         func(args ...string) measurement
	}{
		{"RoCEv2, TAP", "rocev2", onTAP}, {"iWARP, TAP", "iwarp", onTAP},
		{"RoCEv2, AF_PACKET", "rocev2", onPacket},
		{"in process, direct, of RoCEv2 QPs", "rocev2", inside}, {"in process, direct, of iWARP QPs", "iwarp", inside},
	}
	for _, w := range where {
		r := &row{What: "allocations per message, most of WRITE, SEND and READ of 8 bytes and 64 KiB, " + w.name, Goal: 0.01, AtMost: true,
			Unit: "", only: true}
		all = append(all, single(r, func(ctx context.Context, l *lab) (most float64, err error) {
			for _, op := range []string{"write", "send", "read"} {
				p, err := w.measure(op, "bw", "--transport", w.transport, "--size", "8", "--size", strconv.Itoa(small))(ctx, l)
				if err != nil {
					return 0, err
				}
				for _, size := range p {
					most = max(most, size.Allocs+size.PeerAllocs)
				}
			}
			return most, nil
		}))
	}
	return all
}
