package conform

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/iwarp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/rocev2"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/serve"
	"github.com/softrnic/softrnic/link/pipe"
)

var program = clitest.Program(func() any {
	return new(struct {
		Serve   serve.Command `cmd:""`
		Conform Command       `cmd:""`
	})
})

// freeAddr returns an unused TCP address of the loopback interface.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestProgram: conform tests serve, prints its findings and writes the requested files. Without the
// token it is refused.
func TestProgram(t *testing.T) {
	lan, controlAddr, dir := new(pipe.Switch), freeAddr(t), t.TempDir()
	t.Setenv(control.TokenVariable, "secret")
	s := program.Start(t, lan, "serve --addr 10.0.0.1/24 --conform --conform-addr "+controlAddr)
	s.Await(t, &s.Err, "msg=serving")
	base := []string{"conform", "--addr", "10.0.0.2", "--target", "10.0.0.1", "--control", controlAddr}
	run := func(args ...string) (int, string, string) {
		return program.Run(context.Background(), lan, append(base[:len(base):len(base)], args...)...)
	}

	t.Setenv(control.TokenVariable, "wrong")
	if code, out, errs := run(); code != cli.ExitUsage || out != "" || !strings.Contains(errs, "the token is wrong") {
		t.Errorf("with a wrong token: %d, %s%s", code, out, errs)
	}
	t.Setenv(control.TokenVariable, "secret")
	report, pageFile := filepath.Join(dir, "report.xml"), filepath.Join(dir, "report.html")
	code, out, errs := run("--wait", "20s", "--quiet", "0s", "--only", "RNR-*,PSN-WRAP", "--junit", report, "--html", pageFile,
		"--capture", dir)
	if code != cli.ExitOK || !strings.Contains(out, "PASS  PSN-WRAP") || !strings.Contains(out, "0 failed, 0 skipped") {
		t.Errorf("exits with %d: %s%s", code, out, errs)
	}
	var suites junit.Testsuites
	if b, err := os.ReadFile(report); err != nil || xml.Unmarshal(b, &suites) != nil || len(suites.Suites) != 1 ||
		suites.Suites[0].Tests != strings.Count(out, "PASS") || suites.Suites[0].Failures != 0 {
		t.Errorf("JUnit: %v, %s", err, b)
	}
	if b, err := os.ReadFile(pageFile); err != nil || !strings.Contains(string(b), "PSN-WRAP") {
		t.Errorf("HTML: %v, %s", err, b)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "PSN-WRAP.pcap")); err != nil || len(b) < 300 {
		t.Errorf("capture: %v, %d bytes", err, len(b))
	}
	code, out, errs = run("--wait", "20s", "--json", "--only", "PSN-WRAP")
	var r Report
	if err := json.Unmarshal([]byte(out), &r); code != cli.ExitOK || err != nil || len(r.Results) != 1 || len(r.Results[0].Packets) < 4 {
		t.Errorf("JSON: %d, %v: %s%s", code, err, out, errs)
	}
	code, out, errs = run("--wait", "20s", "--transport", "iwarp", "--only", "ENH-A,FPDU-CRC-*", "--html", pageFile,
		"--capture", dir)
	// Without CRCs.
	if code != cli.ExitOK || !strings.Contains(out, "PASS  ENH-A") || !strings.Contains(out, "0 failed, 2 skipped") {
		t.Errorf("iWARP: exits with %d: %s%s", code, out, errs)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "FPDU-CRC-WRONG.pcap")); err != nil || !bytes.Contains(b, []byte("MPA ID Rep Frame")) {
		t.Errorf("capture: %v, %d bytes", err, len(b))
	}
	code, out, errs = run("--wait", "20s", "--transport", "iwarp", "--json", "--only", "FPDU-CRC-WRONG")
	r = Report{}
	if err := json.Unmarshal([]byte(out), &r); code != cli.ExitOK || err != nil || len(r.Results) != 1 {
		t.Fatalf("JSON of iWARP: %d, %v: %s%s", code, err, out, errs)
	}
	r.Results[0].Verdict = suite.Fail // the report shows the packets of a failed case
	var html strings.Builder
	if err := page().Execute(&html, &r); err != nil || !strings.Contains(html.String(), "<svg ") ||
		!strings.Contains(html.String(), "Terminate: MPA error: CRC of the FPDU is wrong") {
		t.Errorf("the report of a failed case: %v: %s", err, html.String())
	}
	s.Stop()
	if code := s.Wait(t); code != cli.ExitOK {
		t.Errorf("serve exits with %d: %s", code, &s.Err)
	}
}

// TestSetUps: with the corresponding flags of serve, a node conforms to the statements about other
// set-ups of MPA.
func TestSetUps(t *testing.T) {
	t.Setenv(control.TokenVariable, "x")
	for mpa, only := range map[string]string{
		"no-crc,markers,revision1": "FPDU-CRC-NONE*,MARKER-RECEIVED,MARKER-RESERVED,MARKER-POINTER,INIT-PLAIN",
		"client-server":            "INIT-CLIENT-RTR",
	} {
		lan, controlAddr := new(pipe.Switch), freeAddr(t)
		s := program.Start(t, lan, "serve --addr 10.0.0.1/24 --conform --conform-addr "+controlAddr+" --mpa "+mpa)
		s.Await(t, &s.Err, "msg=serving")
		args := "conform --transport iwarp --wait 20s --addr 10.0.0.2 --target 10.0.0.1 --control " + controlAddr + " --only " + only
		if code, out, errs := program.Run(context.Background(), lan, strings.Fields(args)...); code != cli.ExitOK ||
			!strings.Contains(out, "0 failed, 0 skipped") {
			t.Errorf("%s: exits with %d: %s%s", mpa, code, out, errs)
		}
		s.Stop()
		if code := s.Wait(t); code != cli.ExitOK {
			t.Errorf("serve exits with %d: %s", code, &s.Err)
		}
	}
}

// TestUsage: usage errors are reported before anything is opened, and --list needs no target.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"conform --addr 10.0.0.2":                                    "--target is missing: must be the IPv4 address",
		"conform --target 10.0.0.1":                                  "--addr is missing: must be an IPv4 address",
		"conform --target 10.0.0.1 --addr 10.0.0.2 --only NO-*":      "--only NO-*: there is no such case",
		"conform --netns --target 10.0.0.1":                          "--netns makes a link and a target of its own",
		"conform --target 10.0.0.1 --addr 10.0.0.2":                  "a pipe is within one process",
		"conform --target 10.0.0.1 --addr 10.0.0.2 --link kernel:lo": "carry no Ethernet frames",
	} {
		if code, _, errs := program.Run(context.Background(), nil, strings.Fields(args)...); code == cli.ExitOK ||
			!strings.Contains(errs, want) {
			t.Errorf("%s: exits with %d: %s", args, code, errs)
		}
	}
	code, out, _ := program.Run(context.Background(), nil, "conform", "--list")
	if n := strings.Count(out, "\n"); code != cli.ExitOK || n != len(rocev2.Cases(nil)) {
		t.Errorf("--list exits with %d and prints %d lines", code, n)
	}
	code, out, _ = program.Run(context.Background(), nil, "conform", "--list", "--transport", "iwarp")
	if n := strings.Count(out, "\n"); code != cli.ExitOK || n != len(iwarp.Cases(nil)) {
		t.Errorf("--list of iWARP exits with %d and prints %d lines", code, n)
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }

// TestCannotTest: a target that cannot do what each case begins with fails no case. The reason is
// reported.
func TestCannotTest(t *testing.T) {
	lan := new(pipe.Switch)
	s := program.Start(t, lan, "serve --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "msg=serving")
	t.Setenv(control.TokenVariable, "x")
	const otherDevice = "OSError: rdma_cm takes rxe0 for 10.0.0.1:0, not card0"
	for _, c := range []struct {
		transport, op, error, want string
	}{
		{"rocev2", "create_qp", "no device memory", "create_qp: the target says: no device memory"},
		{"rocev2", "connect", "no such address", "connect: the target says: no such address"},
		{"iwarp", "create_qp", "no device memory", "create_qp: the target says: no device memory"},
		{"iwarp", "listen", otherDevice, "listen: the target says: " + otherDevice},
	} {
		addr := refusing(t, c.op, c.error)
		code, out, errs := program.Run(t.Context(), lan, "conform", "--addr", "10.0.0.2", "--target", "10.0.0.1",
			"--control", addr, "--wait", "20s", "--transport", c.transport)
		if code != cli.ExitUsage || out != "" || !strings.Contains(errs, "cannot test card0: "+c.want) {
			t.Errorf("%s: %d, %s%s", c.transport, code, out, errs)
		}
	}
}

// refusing returns the address of a responder that answers one request with an error.
func refusing(t *testing.T, op, message string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			for in := bufio.NewScanner(conn); in.Scan(); {
				var asked struct{ Op string }
				reply := control.Reply{Name: "card0", QP: 1}
				if err := json.Unmarshal(in.Bytes(), &asked); err != nil || asked.Op == op {
					reply.Error = message
				}
				if err := json.NewEncoder(conn).Encode(&reply); err != nil {
					break
				}
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}
