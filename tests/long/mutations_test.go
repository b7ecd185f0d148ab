package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// A mutation removes a rule from the code. The tests of a package must then fail.
type mutation struct {
	rule     string
	file     string
	old, new string // text of the file; old occurs in it once
	pkg, run string // the package whose tests fail, and a pattern of those tests
}

const (
	directPath  = "rdmatransport/internal/direct/"
	roceDirect  = "rdmatransport/internal/rocetransport/direct.go"
	iwarpDirect = "rdmatransport/internal/iwarptransport/direct.go"
	roceReceive = "rdmatransport/internal/rocetransport/receive/"
	roceSend    = "rdmatransport/internal/rocetransport/send/"
)

var mutations = []mutation{
	{"a message is not moved to a QP of another peer", roceDirect, "p.dest == q.num && ", "", "rdmatransport", "TestDirect"},
	{"a message is not moved to a QP of another path MTU", roceDirect, " && p.mtu == q.mtu", "", "rdmatransport", "TestDirect"},
	{"no message is moved past a response that is owed", roceReceive + "state.go", "v.due() || s.Responds()", "v.due()", roceReceive, ""},
	{"or past a verdict that is due", roceReceive + "state.go", "v.due() || s.Responds()", "s.Responds()", roceReceive, ""},
	{"packets that are kept are dropped where one is moved", roceReceive + "state.go", "\ts.suspect()\n\treturn true\n", "\treturn true\n",
		roceReceive, ""},
	{"LockPeer let the lock go: the QP may have been closed", roceDirect, "case kept:\n", "case kept || true:\n", "rdmatransport",
		"TestDirect"},
	{"MaxRDAtomic bounds READs that are moved", roceDirect, "q.h.Attr().MaxRDAtomic > 0 && ", "", "rdmatransport", "TestDirect"},
	{"MaxDestRDAtomic bounds READs that are moved", roceDirect, "p.receiving.Limit() > 0 && ", "", "rdmatransport", "TestDirect"},
	{"no READ overtakes what the peer has sent, over iWARP", iwarpDirect, "case isRead(wr.Opcode) && c.received != d.sent:",
		"case false && c.received != d.sent:", "rdmatransport", "TestDirect"},
	{"a SEND with a bad lkey takes no receive request from an SRQ", directPath + "receiver.go",
		"\tif r.SRQ && !memory.Sound(wr, own, off, n) {\n\t\treturn nil\n\t}\n", "", "rdmatransport", "TestDirect"},
	{"a message is moved in parts", directPath + "direct.go", "maxPart = 1 << 20", "maxPart = 1 << 40", "rdmatransport", "TestDirect"},
	{"a READ takes the PSNs of its responses", roceReceive + "store.go", "\t\tk.remove(psn & k.mask)\n", "",
		"rdmatransport/internal/rocetransport/receive", ""},
	{"the number of stores of early packets is bounded", roceReceive + "store.go", "if s.inUse.Add(1) > MaxStores {",
		"if s.inUse.Add(1) < 0 {", "rdmatransport/internal/rocetransport/receive", ""},
	{"the number of repeated READs that wait is bounded", roceReceive + "pending.go",
		"if r.replay && len(p.queue) >= 2*int(limit)+maxReplays {", "if false {", "rdmatransport/internal/rocetransport/receive", ""},
	{"a lost packet takes itself out of the window", roceSend + "selective.go", "s.setWindow(s.window.onLoss(lost))", "_ = lost", roceSend,
		""},
	{"packets beyond a truncated selective acknowledgement are not lost", roceSend + "loss.go", "if b.truncated && ", "if false && ",
		roceSend, ""},
	{"an answer that may be to the probe says nothing about lateness", roceSend + "rtt.go", "case after > likely:", "default:", roceSend, ""},
	{"nothing is learned from few answers", roceSend + "lateness.go", "if l.answers >= firstAnswers && ", "if ", roceSend, ""},
	{"lateness is forgotten", roceSend + "lateness.go", "l.recent.Swap(0)", "l.recent.Load()", roceSend, ""},
	{"no probe is sent before an answer is requested", roceSend + "retransmit.go", " && s.awaitsAnswer()\n", "\n", roceSend, ""},
	{"an answer of the scoreboard ends the wait after a probe", roceSend + "acknowledge.go",
		"\tif s.rtt.probing() {\n\t\ts.learn()\n\t}\n", "", roceSend, ""},
	{"new packets after those that are sent again are measured", roceSend + "next.go",
		"if wire.PSNDiff(past, f.max) > 0 {", "if b.PSN == f.max {", roceSend, ""},
	{"the packet of an RNR NAK during recovery is sent again", roceSend + "acknowledge.go",
		"s.board.markLost(psn) // only this PSN is sent again: the peer keeps later packets", "_ = psn", roceSend, ""},
	{"an atomic's address is a multiple of 8, whatever its memory's is", "rdmatransport/internal/rocetransport/deferred.go",
		"a.Addr%8 != 0 || ", "", "rdmatransport/internal/rocetransport", ""},
	{"and where it is moved", roceDirect, "wr.RemoteAddr%8 == 0 && ", "", "rdmatransport", "TestDirect"},
	{"and over iWARP", "rdmatransport/internal/iwarptransport/placement.go", "h.TO%8 != 0 || ", "", "rdmatransport", "TestDirect"},
	{"Close of a window waits", "verbs/mw.go", "\tmw.pd.quiesce(nil)\n", "", "verbs", ""},
	{"an XRC SRQ leaves the QPs that use it", "verbs/xrc.go", "\t\t\tqp.rq.reset()\n", "", "verbs", "TestXRCSRQGoes"},
	{"a listener's port is released", "verbs/rdmacm/port.go", "\tt.mu.Lock()\n\tt.remove(b)\n", "\tt.mu.Lock()\n", "verbs/rdmacm", ""},
	{"another ephemeral port is tried", "verbs/rdmacm/port.go", "if b == nil || !b.ephemeral ||", "if true ||", "verbs/rdmacm", ""},
	{"a second event wakes another goroutine", "verbs/rdmacm/channel.go", "return e, true, len(c.events) > 0", "return e, true, false",
		"verbs/rdmacm", ""},
	{"events of a listener's requests move with it", "verbs/rdmacm/id.go", "defer to.add(child.ch.removeID(child)...)",
		"child.ch.removeID(child)", "verbs/rdmacm", ""},
	{"a QP that the application made is flushed by a reset", "rdmatransport/internal/iwarptransport/receive.go",
		"q.failQP() // posted requests can no longer be sent", "_ = q", "rdmatransport/internal/iwarptransport", "TestOwnQPFlushed"},
	{"an idle stream gives its receive memory back", "rdmatransport/internal/iwarptransport/receive.go", "\t\tc.deframer.Release()\n", "",
		"rdmatransport/internal/iwarptransport/...", ""},
	{"an error of the LLP raises an event", "rdmatransport/internal/iwarptransport/receive.go", "\t\tq.h.Event(asyncEvent(err))\n",
		"\t\t_ = asyncEvent\n", "rdmatransport/internal/iwarptransport/...", ""},
	{"a capture that has failed is not written on", "link/capture/capture.go", "if l.err != nil || l.closed {\n\t\t\treturn",
		"if l.closed {\n\t\t\treturn", "link/capture", ""},
	{"a checksum begins after the Ethernet header", "link/internal/vnet/header.go", "f.ChecksumStart < link.EthernetHeaderLen || ", "",
		"link/internal/vnet", ""},
	{"clients of a hub that was killed start the next", "stack/hub/client_linux.go", "\t\t\tstarted, err = c.start()\n",
		"\t\t\tstarted, err = nil, nil\n", "stack/hub", "TestKilledHub"},
	{"a Terminate message waits for room", iwarp + "send.go", "\t\t\tq.finish()\n\t\t\treturn\n", "\t\t\treturn\n",
		"rdmatransport/internal/iwarptransport", "TestNothingAfterTerminate"},
	{"a stream that refuses coalesced data is lost", iwarp + "output.go", "if _, err := q.sendCoalesced(); err != nil {",
		"if _, err := q.sendCoalesced(); err != nil && false {", "rdmatransport/internal/iwarptransport", "TestStreamLost"},
	{"a READ that siw blames is found by its memory", iwarp + "terminate.go", "wr.Opcode == verbs.RDMARead && wr.RKey", "false && wr.RKey",
		"rdmatransport/internal/iwarptransport", "TestTerminateReceived"},
	{"a flood leaves a peer time to answer", roce + "cm/params.go", "maxHeld = 16384", "maxHeld = 512", "rdmatransport",
		"TestConnectDuringFlood"},
	{"a QP in ERR flushes its receives", "verbs/complete.go", "for qp.rq.len() > 0 {", "for false {", "tests/conformance",
		"TestPeerKilled"},
	{"a peer that is silent is given up", roceSend + "retry.go", "if r.timeoutsAndNAKs >= limit {", "if false {", "tests/conformance",
		"TestPeerKilled"},
	{"a message over XRC has the number of its SRQ", "rdmatransport/internal/rocetransport/xrc.go", "\tr.srqn = p.XRCETH.SRQ\n", "",
		"cmd/softrnic/internal/pingpong", "TestPingpongXSRQ"},
	{"serve sets up MPA as configured: markers", "cmd/internal/node/node.go", "m.Markers = true", "m.Markers = false",
		"cmd/softrnic/internal/conform", "TestSetUps"},
	{"serve sets up MPA as configured: client-server", "cmd/internal/node/node.go", "m.NoPeerToPeer = true", "m.NoPeerToPeer = false",
		"cmd/softrnic/internal/conform", "TestSetUps"},
	{"claims of dead processes are removed", "link/shm/segment_linux.go", "\t\t\tremoveStaleClaim(s.config.dir, path)\n", "", "link/shm",
		"TestKilled"},
	{"a lost connection is reported after one half has ended", "verbs/ulp/rsocket/progress.go", "c.writeShut && c.peerShut:",
		"c.writeShut || c.peerShut:", "rdmatransport/internal/iwarptransport", "TestSocketMatrix"},
	{"the hub speaks for clients that were killed", "stack/hub/relay_linux.go", "\tr.classifier.Died(n)\n", "",
		"stack/hub", "TestSuccessorWaits"},
	{"the hub closes the resources of a killed client", "stack/hub/serve_linux.go",
		"\t\t_ = conn.Close()\n\t\ts.mu.Lock()\n\t\tdefer s.mu.Unlock()\n\t\tdelete(s.conns, conn)\n", "", "stack/hub",
		"TestKilledClients"},
	{"a service is one client's", "stack/hub/relay_linux.go", "case o.uses > 0 && o.Overlaps(s):",
		"case false && o.Overlaps(s):", "stack/hub", "TestSharedAddress"},
	{"the hub sees what comes from its own addresses", "stack/hub/sockets_linux.go",
		"\t\t\tt.Sources = append(t.Sources, o)\n", "\t\t\t_ = o\n", "stack/hub", "TestSteering"},
	{"a process drops what is for another", "stack/kernel/steered.go", "t.qpns.Contains(", "true || t.qpns.Contains(",
		"stack/hub", "TestMixedSuperframe"},
	{"a checksum ends within the frame", "link/internal/vnet/header.go", "|| int(f.ChecksumStart)+int(f.ChecksumOffset)+2 > len(data)", "",
		"link/internal/vnet", ""},
}

// TestMutations: the tests notice each rule that is removed.
func TestMutations(t *testing.T) {
	gate.Long(t)
	takeOut(t, mutations)
}

// TestRulesAreThere: the text of each mutation is in its file, so that the long run finds it.
func TestRulesAreThere(t *testing.T) {
	for _, m := range slices.Concat(mutations, breaches) {
		if _, text := m.source(t); strings.Count(text, m.old) != 1 {
			t.Errorf("%s: %s has %d times: %s", m.rule, m.file, strings.Count(text, m.old), m.old)
		}
	}
}

// source returns the absolute path and the text of the file that a mutation changes.
func (m *mutation) source(t *testing.T) (path, text string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, string(b)
}

// takeOut removes one rule after the other. args are for the tests that must fail.
func takeOut(t *testing.T, mutations []mutation, args ...string) {
	tried, noticed := 0, 0
	sound := make(map[string]bool) // the tests that pass without any mutation
	for _, m := range mutations {
		t.Run(m.rule, func(t *testing.T) {
			path, text := m.source(t)
			changed := filepath.Join(t.TempDir(), "changed.go")
			if err := os.WriteFile(changed, []byte(strings.Replace(text, m.old, m.new, 1)), 0o666); err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			list := filepath.Join(t.TempDir(), "overlay.json")
			if err := os.WriteFile(list, overlay, 0o666); err != nil {
				t.Fatal(err)
			}
			if tests := m.pkg + " " + m.run; !sound[tests] {
				if out, err := m.test(t, nil, args); err != nil {
					t.Fatalf("the tests of %s fail as it is\n%s", m.pkg, out)
				}
				sound[tests] = true
			}
			out, err := m.test(t, []string{"-overlay", list}, args)
			tried, noticed = tried+1, noticed+1
			switch {
			case err == nil:
				noticed--
				t.Errorf("no test of %s fails without it", m.pkg)
			case strings.Contains(string(out), "[build failed]"):
				t.Errorf("does not compile\n%s", out)
			}
			if failed := failedTest.FindStringSubmatch(string(out)); failed != nil {
				t.Logf("%s fails", failed[1])
			}
		})
	}
	t.Logf("result: %d of %d rules that were taken out are noticed", noticed, tried)
}

// failedTest matches a subtest that has failed.
var failedTest = regexp.MustCompile(`(?m)^ +--- FAIL: (\S+)`)

// test runs the tests that must fail without the rule, with additional flags for the go command and
// arguments for the tests.
func (m *mutation) test(t *testing.T, flags, args []string) (out []byte, err error) {
	line := slices.Concat([]string{"test"}, flags, []string{"-failfast", "-timeout", "3m", "-run", m.run, "./" + m.pkg}, args)
	cmd := exec.CommandContext(t.Context(), "go", line...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "SOFTRNIC_LONG=", "SOFTRNIC_SYSTEM=")
	return cmd.CombinedOutput()
}
