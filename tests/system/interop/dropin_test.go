//go:build linux && amd64

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// debianProgram is a program written for libibverbs. It runs unmodified on the drop-in libraries on
// one side, and on the kernel's device on the other. SERVER stands for the server's address, and
// OWN for the own one.
type debianProgram struct {
	server, client string
	transport      verbs.Transport
	device         bool   // it has options for the device and the GID
	port           int    // TCP port on which its two sides meet; without one they use rdma_cm
	group          string // that the server receives from without a connection
	endless        bool   // the server does not end by itself
	// Options for TCP on SoftRNIC's side, which softrnic run --sockets carries; the other side uses
	// rsockets.
	tcp         string
	preload     bool   // the other side uses TCP as well, which librspreload.so turns into rsockets
	bytes       uint64 // minimum that the drop-in device sends and receives
	connections int    // of the drop-in device
	both        bool   // it runs in both roles even outside the long run
}

// debianPrograms returns the programs, in the long run all of them. With UC and UD the tests wait
// for each answer, and RC's timeout is four seconds, because an emulated machine is slow and loses
// many packets. The ping-pongs' timeout is half a second, so both sides sleep until there is a
// completion (-e). rxe has no XRC, which ibv_xsrq_pingpong needs. siw has no datagrams and no
// atomics. qperf's tests without rdma_cm, including all of UC and UD, address a peer by its LID
// alone, which no device has over Ethernet. Its other iWARP tests need features that siw lacks: a
// QP that cannot send or cannot receive, or a WRITE with immediate data. rstream's polling clients
// (-T a) fail if the server ends before they poll for the last bytes: Linux's rpoll then also
// returns POLLHUP.
func debianPrograms() (list []debianProgram) {
	const roce, iwarp = verbs.RoCEv2, verbs.IWARP
	perftest := func(transport verbs.Transport, bytes uint64, args string) {
		f := debianProgram{server: args + " -F", client: args + " -F SERVER", transport: transport, bytes: bytes}
		if !strings.Contains(args, " -R") {
			f.device, f.port = true, 18515
		}
		list = append(list, f)
	}
	pingpong := func(bytes uint64, args string) {
		list = append(list, debianProgram{server: args, client: args + " SERVER", transport: roce, bytes: bytes, device: true, port: 18515})
	}
	mckey := func(args string) {
		const group = "239.7.7.7"
		args = "mckey -m " + group + " " + args
		list = append(list, debianProgram{server: args + " -b OWN", client: args + " -s -b OWN", transport: roce, bytes: 20 * 500,
			group: group})
	}
	qperf := func(transport verbs.Transport, tests ...string) {
		for _, test := range tests {
			bytes := uint64(200)
			if strings.HasSuffix(test, "_bw") {
				bytes = 5 * 65536
			}
			list = append(list, debianProgram{
				server: "qperf", client: "qperf SERVER -t 1 -cm 1 " + test + " quit", transport: transport, bytes: bytes, port: 19765,
			})
		}
	}
	perftest(roce, 50*2, "ib_write_lat -n 50 -c UC")
	perftest(roce, 50*65536, "ib_read_bw -n 50 -e -u 20")
	perftest(roce, 50*2, "ib_send_lat -n 50 -c UD")
	perftest(roce, 50*8, "ib_atomic_lat -n 50 -u 20")
	for _, transport := range []verbs.Transport{roce, iwarp} {
		list = append(list, debianProgram{server: "rping -s -a OWN -v -C 20 -S 1000", client: "rping -c -a SERVER -v -V -C 20 -S 1000",
			transport: transport, bytes: 2 * 20 * 1000})
	}
	for _, transport := range []verbs.Transport{roce, iwarp} {
		for _, name := range []string{"rstream -b", "riostream -b"} {
			// 400 or 1280 KiB.
			for _, opts := range []string{" -S 4096 -C 50 -T v", " -S 65536 -C 10 -T b -T v"} {
				list = append(list, debianProgram{
					server: name + " OWN" + opts, client: strings.Replace(name, "-b", "-s", 1) + " SERVER" + opts,
					transport: transport, bytes: 400 << 10,
				})
			}
		}
		const polls = "rstream -b OWN -S 4096 -C 50 -T v"
		list = append(list, debianProgram{server: polls + " -T a", client: "rstream -s SERVER -S 4096 -C 50 -T v", transport: transport,
			bytes: 400 << 10})
	}
	for _, test := range []struct{ opts, tcp string }{{" -S 4096 -C 50 -T b", " -T s"},
		{" -S 1048576 -C 2 -T n -T v", " -T f"}} { // forks as a server
		list = append(list, debianProgram{server: "rstream -b OWN" + test.opts, client: "rstream -s SERVER" + test.opts, transport: roce,
			tcp: test.tcp, bytes: 400 << 10})
	}
	list = append(list, debianProgram{
		server: "rstream -b OWN -S 4096 -C 50 -T v", client: "rstream -s SERVER -S 4096 -C 50 -T v", transport: roce, tcp: " -T s",
		preload: true, bytes: 400 << 10,
	})
	list = append(list,
		debianProgram{server: "ucmatose -b OWN -c 4 -C 20 -S 1000", client: "ucmatose -s SERVER -c 4 -C 20 -S 1000",
			bytes: 2 * 4 * 20 * 1000},
		debianProgram{server: "udaddy -b OWN -C 5 -S 500", client: "udaddy -s SERVER -C 5 -S 500", bytes: 2 * 5 * 500},
		debianProgram{server: "rdma_server -s OWN", client: "rdma_client -s SERVER", bytes: 2 * 16},
	)
	pingpong(2*20*10000, "ibv_rc_pingpong -e -c -n 20 -s 10000")
	pingpong(2*20*4096, "ibv_uc_pingpong -e -c -n 20")
	pingpong(2*20*1024, "ibv_ud_pingpong -e -c -n 20 -s 1024")
	pingpong(2*20*4096, "ibv_srq_pingpong -e -c -n 20 -q 4")
	mckey("-C 20 -S 500")
	qperf(roce, "rc_lat")
	qperf(iwarp, "rc_lat")
	perftest(iwarp, 50*2, "ib_write_lat -n 50 -R") // whose server sends first
	list[len(list)-1].both = true
	if os.Getenv("SOFTRNIC_LONG") == "" {
		return list
	}
	pingpong(2*20*1, "ibv_rc_pingpong -e -c -n 20 -s 1")
	pingpong(2*4*(1<<20), "ibv_rc_pingpong -e -c -n 4 -s 1048576")
	pingpong(2*20*4096, "ibv_rc_pingpong -e -c -N -n 20")
	pingpong(2*20*1, "ibv_uc_pingpong -e -c -n 20 -s 1")
	pingpong(2*4*100000, "ibv_uc_pingpong -e -c -n 4 -s 100000")
	pingpong(2*20*1, "ibv_ud_pingpong -e -c -n 20 -s 1")
	pingpong(2*20*1, "ibv_srq_pingpong -e -c -n 20 -s 1")
	pingpong(2*4*65536, "ibv_srq_pingpong -e -c -n 4 -q 4 -s 65536")
	mckey("-C 100 -S 1024")
	qperf(roce, "rc_bw", "rc_bi_bw", "rc_rdma_read_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat",
		"rc_rdma_write_bw", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add")
	qperf(iwarp, "rc_bi_bw")
	perftest(roce, 50*65536, "ib_write_bw -n 50 -u 20")
	perftest(roce, 200*65536, "ib_write_bw -n 50 -q 4 -b -u 20")
	perftest(roce, 10*(8<<20), "ib_write_bw -n 10 -a -u 20")
	perftest(roce, 50*65536, "ib_write_bw -n 50 --report_gbits -u 20 -R")
	perftest(roce, 50*2, "ib_write_lat -n 50 -u 20 -R")
	perftest(roce, 50*2, "ib_read_lat -n 50 -u 20 -R")
	perftest(roce, 50*65536, "ib_send_bw -n 50 -u 20")
	perftest(roce, 50*2, "ib_send_lat -n 50 -e -u 20 -R")
	perftest(roce, 50*8, "ib_atomic_bw -n 50 -u 20")
	perftest(iwarp, 50*65536, "ib_write_bw -n 50 -R")
	perftest(iwarp, 50*65536, "ib_send_bw -n 50 -R")
	perftest(iwarp, 50*2, "ib_send_lat -n 50 -R")
	perftest(iwarp, 50*2, "ib_read_lat -n 50 -R")
	perftest(roce, 5*(8<<20), "ib_read_bw -n 5 -a -u 20")
	perftest(roce, 80*65536, "ib_read_bw -n 20 -q 4 -u 20")
	perftest(roce, 50*65536, "ib_read_bw -n 50 -b -u 20")
	perftest(roce, 20*65536, "ib_read_bw -n 20 -u 20 -R")
	perftest(roce, 50*65536, "ib_send_bw -n 50 -e -u 20")
	perftest(roce, 5*(8<<20), "ib_send_bw -n 5 -a -u 20")
	perftest(roce, 20*65536, "ib_send_bw -n 20 -u 20 -R")
	perftest(roce, 20*1024, "ib_send_bw -n 20 -s 1024 -c UD")
	perftest(roce, 20*1024, "ib_send_bw -n 20 -s 1024 -c UC")
	perftest(roce, 20*65536, "ib_write_bw -n 20 -c UC")
	perftest(roce, 20*8, "ib_atomic_bw -n 20 -u 20 -R")
	perftest(roce, 20*8, "ib_atomic_lat -n 20 -u 20 -R")
	perftest(iwarp, 50*65536, "ib_read_bw -n 50 -R")
	for _, transport := range []verbs.Transport{roce, iwarp} {
		for _, opts := range []string{" -S 64 -C 3000 -T b", " -S 1048576 -C 4 -T n -T v", " -S 1048576 -C 4 -T r -T v",
			" -S 1000 -C 200 -T b -k 1"} {
			list = append(list, debianProgram{server: "rstream -b OWN" + opts, client: "rstream -s SERVER" + opts, transport: transport,
				bytes: 2 * 3000 * 64})
		}
	}
	return append(list,
		debianProgram{server: "cmtime -b OWN -c 10", client: "cmtime -s SERVER -c 10", endless: true, connections: 10},
		debianProgram{server: "rdma_xserver -c r", client: "rdma_xclient -s SERVER -c r", bytes: 2 * 16},
	)
}

// TestDropin runs Debian's unmodified programs on the drop-in libraries, as nobody, on the
// machine's own sockets, with rxe or siw on the other side. In the long run each has both roles;
// otherwise most have the role that the previous one did not have.
func TestDropin(t *testing.T) {
	gate.System(t)
	saveTable(t)
	l := dropinLab{libs: buildLibraries(t)}
	if !gate.InLong() {
		tracePort(t, cmPeer(t, 2, verbs.RoCEv2))
	}
	for _, l.transport = range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		l.peer = cmPeer(t, 2, l.transport)
		for i, f := range debianPrograms() {
			if f.transport != l.transport {
				continue
			}
			for j, role := range []string{"client", "server"} {
				if i%2 != j && !f.both && os.Getenv("SOFTRNIC_LONG") == "" {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%s", l.transport, f.client, role), func(t *testing.T) {
					against := l.against()
					if f.tcp != "" {
						against += ", by `--sockets`"
						if f.preload {
							against += " and `librspreload.so`"
						}
					}
					programs.Ran(t, strings.TrimSuffix(f.client, " quit")+f.tcp, against)
					l.run(t, f, role == "client")
				})
			}
		}
		t.Run(fmt.Sprintf("%v/rcopy", l.transport), l.rcopy)
		if l.transport == verbs.RoCEv2 && os.Getenv("SOFTRNIC_LONG") != "" {
			t.Run("RoCEv2/qperf by LID", l.qperfByLID)
		}
	}
}

// saveTable adds the recorded runs of a test to the table of programs.
func saveTable(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if err := programs.Save("../internal/programs"); err != nil {
			t.Error(err)
		}
	})
}

// buildLibraries returns the directory of the drop-in libraries.
func buildLibraries(t *testing.T) string {
	t.Helper()
	peer.Boot(t)
	dir, err := libraries.Directory()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// dropinLab is a peer, and the drop-in libraries on the sockets of the machine in the peer's
// network.
type dropinLab struct {
	peer      *peer.Peer
	libs      string
	transport verbs.Transport
}

// against returns the name of the peer's device in the table of programs.
func (l *dropinLab) against() string {
	return map[verbs.Transport]string{verbs.RoCEv2: "rxe", verbs.IWARP: "siw"}[l.transport]
}

var dropinAddr = netip.MustParseAddr("10.77.0.1")

// run runs both sides of a program. The client is on the drop-in libraries or in the peer.
func (l *dropinLab) run(t *testing.T, f debianProgram, client bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	here, there, counters := f.client, f.server, filepath.Join(forNobody(t), "counters")
	t.Cleanup(func() {
		if trace, err := os.ReadFile(counters + ".trace"); err == nil && t.Failed() {
			t.Logf("its QPs:\n%s", trace)
		}
	})
	server := l.peer.Addr4()
	if !client {
		here, there, server = f.server, f.client, dropinAddr
	}
	here = strings.NewReplacer("SERVER", server.String(), "OWN", dropinAddr.String()).Replace(here)
	there = strings.NewReplacer("SERVER", server.String(), "OWN", l.peer.Addr4().String()).Replace(there)
	if f.device {
		here = withDevice(here, "softrnic0", 1)
		there = withDevice(there, "rxe0", gidIndex(t, l.peer, l.peer.Addr4()))
	}
	if f.tcp != "" {
		here = filepath.Join(l.libs, "softrnic") + " run --sockets --sockets-wait 20s -- " + here + f.tcp
	}
	if f.preload {
		there = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so " + there + f.tcp
	}
	before := l.lost(t)
	start := func() *process { return startProcess(t, l.dropin(ctx, t, here, counters)) }
	if client {
		for tries := 5; !l.clientHere(ctx, t, f, there, start, tries > 0); tries-- {
		}
	} else {
		for tries := 5; !l.serverHere(ctx, t, f, there, start(), tries > 0); tries-- {
		}
	}
	if got, err := programs.Connected(counters+".trace", "RoCE"); f.connections > 0 && (err != nil || got != f.connections) {
		t.Errorf("%d connections, want %d (%v)", got, f.connections, err)
	}
	if t.Failed() || f.endless && !client { // it was interrupted, and has not written its counters
		return
	}
	c, err := programs.Counted(counters)
	if err != nil {
		t.Fatal(err)
	}
	if sum := 4*(c["port_xmit_data"]+c["port_rcv_data"]) + c["iwarp_xmit_bytes"] + c["iwarp_rcv_bytes"]; sum < f.bytes {
		t.Errorf("the drop-in device carried %d bytes, want %d at least: %v", sum, f.bytes, c)
	}
	// After more than 256 packets lost in a row, one is refused and counted as damaged: a socket
	// does not report its identification (rdmatransport/internal/rocetransport/ipid).
	if n, lost := c["icrc_errors"], l.lost(t)-before; n > lost {
		t.Errorf("icrc_errors is %d, and %d packets were lost for want of room", n, lost)
	}
}

// lost returns the number of packets that this machine has dropped: in queues of its processors
// (the second column of /proc/net/softnet_stat), and in UDP sockets of the network namespace.
func (l *dropinLab) lost(t *testing.T) (n uint64) {
	t.Helper()
	out, err := l.peer.Netns.Command(t.Context(), "cat", "/proc/net/softnet_stat", "/proc/net/snmp").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		f, column, base := strings.Fields(line), 1, 16
		if !strings.HasPrefix(line, "Udp: ") {
			if strings.Contains(line, ":") {
				continue
			}
		} else if column, base = slices.Index(names, "RcvbufErrors"), 10; column < 0 {
			names = f
			continue
		}
		v, err := strconv.ParseUint(f[column], base, 64)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		n += v
	}
	if names == nil {
		t.Fatalf("nothing of UDP:\n%s", out)
	}
	return n
}

// rejected reports whether a client says that it was rejected. perftest's server with -R destroys
// its listener after a first connection and creates another, and its client does not wait for that.
// qperf's client does not wait for the listener either. Such a client may retry; qperf's server
// stays the same.
func rejected(said string) bool {
	return strings.Contains(said, "RDMA_CM_EVENT_REJECTED") || strings.Contains(said, "Event rejected")
}

// clientHere runs the server in the peer, and the client here. It returns false if the client was
// rejected and may retry. It also returns false if siw has reset the stream after rstream's server
// had sent all: that server closes its socket with the client's last credits unread, and TCP then
// drops unsent data (RFC 1122 §4.2.2.13).
func (l *dropinLab) clientHere(ctx context.Context, t *testing.T, f debianProgram, there string, start func() *process, again bool) bool {
	t.Helper()
	serving, err := l.peer.Start(there)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	switch {
	case f.port != 0:
		l.peer.Run(t, untilListensOn(f.port))
	case f.group != "":
		l.peer.Run(t, untilAttached(f.group))
	default:
		l.peer.Run(t, untilListens(f.server))
	}
	p := start()
	err = <-p.ended
	for tries := 20; err != nil && f.port != 0 && rejected(p.stderr.String()) && tries > 0; tries-- {
		p = start()
		err = <-p.ended
	}
	if err != nil {
		if again && l.transport == verbs.IWARP && strings.HasPrefix(f.server, "rstream") &&
			strings.Contains(p.stderr.String(), "Connection reset by peer") {
			if code, err := serving.Wait(ctx); err == nil && code == 0 {
				return false
			}
		}
		_ = serving.Kill()
		_, _ = serving.Wait(ctx)
		if again && rejected(p.stderr.String()) {
			return false
		}
		t.Errorf("the client: %v\n%s%s\n%s:\n%s", err, p.stdout.String(), p.stderr.String(), there, serving.Output())
		return true
	}
	if f.endless {
		return true
	}
	if code, err := serving.Wait(ctx); err != nil || code != 0 {
		t.Errorf("%s: exit status %d, %v\n%s", there, code, err, serving.Output())
	}
	return true
}

// serverHere runs the client in the peer, when the server here listens. It returns false if siw has
// failed the client's last SEND and the client may retry. siw does so (IBV_WC_LOC_QP_OP_ERR) if the
// peer has received the SEND, answered and closed the connection before siw checks that it is open.
// perftest's server ends immediately after such a SEND.
func (l *dropinLab) serverHere(ctx context.Context, t *testing.T, f debianProgram, there string, p *process, again bool) bool {
	t.Helper()
	switch {
	case f.port != 0:
		l.awaitPort(t, p, f.port)
	case f.group != "":
		p.await(t, "RDMA_CM_EVENT_MULTICAST_JOIN")
	case f.tcp != "":
		p.await(t, "listens over RDMA")
	default:
		p.await(t, "rdma_cm listens")
	}
	out, code, err := l.peer.Exec(ctx, there)
	for tries := 20; code != 0 && f.port != 0 && rejected(out) && tries > 0; tries-- {
		out, code, err = l.peer.Exec(ctx, there)
	}
	if again && code != 0 && l.transport == verbs.IWARP && strings.Contains(out, "Bad wc status 2\n") {
		p.wait(t) // the server has received everything
		return t.Failed()
	}
	if err != nil || code != 0 {
		t.Errorf("%s: exit status %d, %v\n%s", there, code, err, out)
	}
	if f.endless || t.Failed() {
		_ = p.cmd.Process.Signal(os.Interrupt)
		<-p.ended
		if t.Failed() {
			t.Logf("the server:\n%s%s", p.stdout.String(), p.stderr.String())
		}
	} else {
		p.wait(t)
	}
	return true
}

// withDevice adds options for the device and its GID to a command.
func withDevice(command, device string, gid int) string {
	name, args, _ := strings.Cut(command, " ")
	option := "-x"
	if strings.HasPrefix(name, "ibv_") {
		option = "-g"
	}
	return fmt.Sprintf("%s -d %s %s %d %s", name, device, option, gid, args)
}

// dropin returns a command line on the drop-in libraries, as nobody.
func (l *dropinLab) dropin(ctx context.Context, t *testing.T, line, counters string) *exec.Cmd {
	t.Helper()
	program, args, _ := strings.Cut(line, " ")
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	cmd := l.peer.Netns.Command(ctx, "setpriv", asNobody(path, args)...)
	cmd.Env = []string{
		"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LD_LIBRARY_PATH=" + l.libs, "SOFTRNIC_LINK=kernel:" + l.peer.Netns.Bridge,
		"SOFTRNIC_SHARED=0", "SOFTRNIC_ADDR=" + dropinAddr.String(),
		// perftest assumes that rdma_cm uses the first device, and its two sides must agree.
		map[verbs.Transport]string{verbs.RoCEv2: "SOFTRNIC_DEVICE=softrnic0,", verbs.IWARP: "SOFTRNIC_DEVICE=,softrnic0"}[l.transport],
		"SOFTRNIC_COUNTERS=" + counters, "SOFTRNIC_TRACE=" + counters + ".trace", "SOFTRNIC_LOG=debug",
	}
	return cmd
}

// untilListensOn waits until a program listens on a TCP port.
func untilListensOn(port int) string {
	return fmt.Sprintf("until ss -Hltn sport = :%d | grep -q .; do sleep 0.05; done", port)
}

// untilAttached waits, in a peer, until a QP is attached to a group: rxe then makes its interface
// receive the group's MAC address, in IPv6's form (RFC 2464 §7).
func untilAttached(group string) string {
	b := netip.MustParseAddr(group).As4()
	return fmt.Sprintf("until ip maddr show dev eth0 | grep -q 33:33:%02x:%02x:%02x:%02x; do sleep 0.05; done", b[0], b[1], b[2], b[3])
}

// qperfByLID: qperf's tests of UC and UD do not support -cm, and so address the peer by its LID.
// The kernel's device and the drop-in device refuse that in the same way: over Ethernet an address
// has a GID.
func (l *dropinLab) qperfByLID(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	serving, err := l.peer.Start("qperf")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	l.peer.Run(t, untilListensOn(19765))
	for test, want := range map[string]string{"uc_lat": "failed to modify QP to RTR: Invalid argument",
		"ud_lat": "failed to create address handle: Invalid argument"} {
		args := " -t 1 -cm 1 " + test
		there, _, err := l.peer.Exec(ctx, "qperf 127.0.0.1"+args)
		if err != nil {
			t.Fatal(err)
		}
		p := startProcess(t, l.dropin(ctx, t, "qperf "+l.peer.Addr4().String()+args, filepath.Join(forNobody(t), "counters")))
		<-p.ended
		for who, said := range map[string]string{"rxe": there, "the drop-in device": p.stdout.String() + p.stderr.String()} {
			if !strings.Contains(said, "-cm set but not used in test "+test) || !strings.Contains(said, want) {
				t.Errorf("%s on %s says %q, want %q", test, who, said, want)
			}
		}
	}
}

// awaitPort waits until a program on the drop-in libraries listens on the TCP port on which the two
// sides meet.
func (l *dropinLab) awaitPort(t *testing.T, p *process, port int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listens := make(chan error, 1)
	go func() { listens <- l.peer.Netns.Command(ctx, "sh", "-c", untilListensOn(port)).Run() }()
	select {
	case err := <-listens:
		if err != nil {
			t.Fatal(err)
		}
	case err := <-p.ended:
		t.Fatalf("it ended before it listened: %v\n%s%s", err, p.stdout.String(), p.stderr.String())
	}
}
