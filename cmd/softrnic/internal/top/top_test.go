package top

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

var program = clitest.Program(func() any {
	return new(struct {
		Top  Command  `cmd:""`
		Help struct{} `cmd:""`
	})
})

// TestTop shows the node of this process, and no node after its end.
func TestTop(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if code, _, stderr := program.Run(t.Context(), nil, "top"); code != cli.ExitFailed || !strings.Contains(stderr, errNone.Error()) {
		t.Errorf("without nodes: exit code %d: %s", code, stderr)
	}
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop, err := status.Publish(dev, nil, nil, nil, status.Node{Command: "test", Link: "pipe", Addrs: []string{"10.0.0.1"}})
	if err != nil {
		t.Skip("there are no unix sockets: ", err)
	}
	cq, err := dev.CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.DefaultPD()
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		if _, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: transport, SendCQ: cq, RecvCQ: cq}); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := program.Run(t.Context(), nil, "top", "--count", "2", "--interval", "10ms")
	if code != cli.ExitOK || strings.Count(stdout, "RoCEv2") != 2 || strings.Count(stdout, "iWARP") != 2 ||
		strings.Count(stdout, "RESET") != 4 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = program.Run(t.Context(), nil, "top", "--count", "1", "--interval", "10ms", "--json")
	var n status.Node
	if err := json.Unmarshal([]byte(stdout), &n); code != cli.ExitOK || err != nil || len(n.QPs) != 2 || n.Device != dev.Name() ||
		n.Resources.QP != 2 {
		t.Errorf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	stop()
	if nodes, err := query.Nodes(t.Context(), 0); err != nil || len(nodes) != 0 {
		t.Errorf("nodes that have ended: %v, %v", nodes, err)
	}
}

// TestRates: the rates are those between two samples, the busiest QP is first, and no line is wider
// than the screen.
func TestRates(t *testing.T) {
	began := time.Unix(0, 0)
	look := func(seconds int, sent, packets, fpdus uint64) []status.Node {
		return []status.Node{{PID: 7, Addrs: []string{"10.0.0.1"}, Snapshot: verbs.Snapshot{Device: "softrnic0"}, Link: "pipe",
			Time: began.Add(time.Duration(seconds) * time.Second), QPs: []status.QP{
				{Num: 1, State: "RTS", Counters: map[string]uint64{"sent_bytes": sent, "sent_pkts": packets, "completer_retry_err": 3}},
				{Num: 2, State: "RTS", Counters: map[string]uint64{"iwarp_rcv_bytes": fpdus}},
			}}}
	}
	before, now := look(0, 1000, 10, 0), look(2, 2_001_000, 2010, 4_000_000)
	all := rows(before, now)
	if len(all) != 2 || all[0].qp.Num != 2 || all[0].rx != 16e6 || all[1].tx != 8e6 || all[1].pkts != 1000 {
		t.Errorf("%+v", all)
	}
	for line := range strings.Lines(renderTable(before, now, 40, 4)) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 40 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	before[0].QPs[0].Peer, now[0].QPs[0].Peer = "10.0.0.2", "10.0.0.2"
	if table := renderTable(before, now, 80, 24); !strings.Contains(table, "PEER") || !strings.Contains(table, "RETRY  RNR  DUP") ||
		strings.Contains(table, "PROTOCOL") {
		t.Errorf("80 columns:\n%s", table)
	}
	if table := renderTable(now, now, 0, 0); strings.Contains(table, "0.0 ") || strings.Count(table, " - ") != 6 {
		t.Errorf("the first screen has no rates:\n%s", table)
	}
	if table := renderTable(before, now, 0, 0); !strings.Contains(table, "PROTOCOL") || !strings.Contains(table, "8.0") ||
		!strings.Contains(table, "16.0") {
		t.Error(table)
	}
}

// TestFaults: the screen says that faults were injected on purpose, by which rules, and how many,
// also after the rules have ended.
func TestFaults(t *testing.T) {
	n := []status.Node{{PID: 7, FaultsInjected: 3, Faults: []fault.State{{Rule: "reg_mr=ENOMEM:3"}, {Rule: "post_send=ENOMEM:1%"}}}}
	const want = "7  3 faults injected on purpose"
	if table := renderTable(n, n, 0, 0); !strings.Contains(table, want+"  reg_mr=ENOMEM:3; post_send=ENOMEM:1%\n") {
		t.Error(table)
	}
	n[0].Faults = nil
	if table := renderTable(n, n, 0, 0); !strings.Contains(table, want+"\n") {
		t.Error(table)
	}
	n[0].FaultsInjected = 0
	if table := renderTable(n, n, 0, 0); strings.Contains(table, "fault") {
		t.Error(table)
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
