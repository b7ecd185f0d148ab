package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/arguments"
	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

// runCommand runs a command line as main does.
func runCommand(t *testing.T, args string) (code int, stdout, stderr string) {
	var out, errs clitest.Output
	code = runCommandLine(t.Context(), strings.Fields(args), &cli.Env{Stdout: &out, Stderr: &errs})
	return code, out.String(), errs.String()
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"":                     "softrnic demo",
		"--help":               "softrnic demo",
		"demo --help":          "SHA-256",
		"devinfo --help":       "--link=LINK",
		"rping --help":         "Usage: softrnic rping [flags]",
		"perf --help":          "--packets",
		"pingpong --help":      "ibv_rc_pingpong",
		"pingpong rc --help":   "--gid-idx=INDEX",
		"pingpong xsrq --help": "ibv_xsrq_pingpong -d mlx5_0 -g 3 10.0.0.9 ",
		"run --help":           "Default: warn\n                               ($SOFTRNIC_LOG).",
		"trace --help":         "\n- bytes after the IP packet:",
		"--version":            "softrnic ",
	} {
		code, stdout, stderr := runCommand(t, args)
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, stderr %q, stdout without %q:\n%s", args, code, stderr, want, stdout)
		}
	}
}

// TestVariables: what the pages call an environment variable is explained by the help of a command.
// The variables of the drop-in libraries are those of dropin.Settings, which softrnic run --help
// lists.
func TestVariables(t *testing.T) {
	variable := regexp.MustCompile(`SOFTRNIC_[A-Z_]*[A-Z]`)
	explained := map[string]bool{}
	for _, command := range []string{"run", "conform"} {
		_, help, _ := runCommand(t, command+" --help")
		for _, name := range variable.FindAllString(help, -1) {
			explained[name] = true
		}
	}
	for name := range dropin.VariablesOnly() {
		if !explained[name] {
			t.Errorf("softrnic run --help does not list %s", name)
		}
	}
	for _, pattern := range []string{"../../README.md", "../../SECURITY.md", "*.md", "kubernetes/*.md", "../dropin/Dockerfile"} {
		files, err := filepath.Glob(pattern)
		if err != nil || files == nil {
			t.Fatalf("%s: no file (%v)", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range variable.FindAllString(string(text), -1) {
				if !explained[name] {
					t.Errorf("%s: %s is not in the help of a command", file, name)
				}
			}
		}
	}
}

func TestErrorsAreOneLineWithTheirExitCode(t *testing.T) {
	dir := t.TempDir()
	full := filepath.Join(dir, "full.pcapng")
	if err := os.WriteFile(full, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		code int
		want string // in the message
	}{
		{"bogus", 2,
			"unexpected argument bogus: the commands are demo, devinfo, pingpong, rping, mckey, nc, proxy, nvme, nfs, perf, serve, switch, " +
				"conform, trace, top, key, peers, impair, fault, fabric, hub, run, cdi, kubernetes (softrnic --help explains)"},
		{"pingpong bogus", 2, "unexpected argument bogus: the commands are rc, uc, ud, srq, xsrq (softrnic pingpong --help explains)"},
		{"demo --bogus", 2, "--bogus"},
		{"demo --size x", 2, "--size"},
		{"demo --size -1", 2, "-1"},
		{"demo --time -1s", 2, "--time"},
		{"demo --time soon", 2, `--time: "soon" is not a duration: must be like 500ms, 5s or 2m; a number without a unit is in seconds`},
		{"demo --impair loss=200%", 2, "200%"},
		{"devinfo --window 131071", 2, "--window: 131071: must be 131072 to 16777216"},
		{"devinfo --window 200000", 2, "--window: 200000: must be a power of two, such as 262144"},
		{"demo --mtu 100", 2, "--mtu: 100: must be 1280 to 65535"},
		{"demo --capture " + filepath.Join(dir, "no", "such"), 1, "softrnic: capture of pipe0: open "},
		{"devinfo --link wire", 2, "pipe, shm[:NAME], stream:PATH"},
		{"devinfo --link tap:", 2, "tap:"},
		{"devinfo --link stream:", 2, "stream:PATH"},
		{"devinfo --link stream:a,queues=2", 2, "queues=2"},
		{"devinfo --link stream:a,mac=interface", 2, "mac=interface"},
		{"devinfo --link tap:a,listen", 2, "listen"},
		{"devinfo --link stream:/no/such", 1, "no process listens there"},
		{"cdi --rails 9", 2, "--rails 9: must be 1 to 8"},
		{"cdi --rails 3 --link kernel:a --link kernel:b", 2, "--link is given 2 times, and --rails is 3"},
		{"cdi --link tap:a", 2, "must be kernel, kernel:INTERFACE, kernel:all or shm"},
		{"cdi --link carrier-pigeon", 2, "--link: "},
		{"cdi --device a/b", 2, "a/b"},
		{"cdi --rails 2 --device mlx", 2, "two devices have the name mlx"},
		{"cdi --speed fast", 2, "SOFTRNIC_SPEED=fast"},
		{"run --speed fast -- true", 2, `--speed: "fast" is not a rate: must be a number of Gbit/s, such as 100`},
		{"run --device a/b -- true", 2, `--device a/b: "a/b" is not a device name: must be`},
		{"run --guid 1 -- true", 2, `--guid 1: "1" is not a GUID: must be like 0002:c903:0012:3456`},
		{"run --secure-port 7 --link pipe -- true", 2, "--secure-port: only with --secure"},
		{"switch", 2, "<port>"},
		{"switch pipe", 2, "a pipe is within one process"},
		{"switch packet:eth0", 2, "packet:eth0 forwards"},
		{"devinfo --link shm:", 2, "shm[:NAME]"},
		{"devinfo --link shm:a/b", 1, "is not a segment name"},
		{"devinfo --link shm,wait=poll", 2, "wait=poll"},
		{"switch tap:a,vlan=5", 2, "passes tags on"},
		{"switch stream:/no/such/s,listen", 1, "/no/such/s"},
		{"devinfo --link pipe:x", 2, "pipe:x"},
		{"devinfo --link tap:a,bridge=", 2, "bridge="},
		{"devinfo --link tap:a,wait=never", 2, "must be adaptive, event or poll"},
		{"devinfo --link packet:a,queues=0", 2, "must be 1 to 16"},
		{"devinfo --link pipe,vlan=4095", 2, "must be 1 to 4094"},
		{"devinfo --link tap:a,vlan=", 2, "must be 1 to 4094"},
		{"devinfo --link pipe,queues=2", 2, "all of these with [,vlan=ID]"},
		{"devinfo --link tap:a,mac=interface", 2, "mac=interface"},
		{"devinfo --link packet:a,mac=interface --mac 02:00:00:00:00:01", 2, "--mac"},
		{"devinfo --link packet:no-such-ifc", 1, "no-such-ifc"},
		{"devinfo --link tap:a/b", 1, "a/b"},
		{"devinfo --link kernel,vlan=5", 2, "there is no vlan"},
		{"devinfo --link kernel:lo,queues=2", 2, "there is no queues"},
		{"devinfo --link kernel:", 2, "kernel[:INTERFACE]"},
		{"devinfo --link kernel --mac 02:00:00:00:00:01", 2, "--mac 02:00:00:00:00:01"},
		{"devinfo --link kernel --gateway 10.0.0.1", 2, "--gateway 10.0.0.1"},
		{"switch kernel:lo", 2, "no Ethernet frames"},
		{"perf write bw --loopback --link kernel:lo", 2, "run two"},
		{"devinfo --addr 10.0.0.1", 2, `"10.0.0.1" is not an address with a prefix length`},
		{"devinfo --addr 10.0.0.0/24", 1, "10.0.0.0/24"},
		{"devinfo --gateway x", 2, "--gateway"},
		{"devinfo --gateway 10.0.0.1", 1, "10.0.0.1"},
		{"devinfo --mac 01:00:00:00:00:01", 2, "01:00:00:00:00:01"},
		{"devinfo --log-level loud", 2, "--log-level"},
		{"pingpong", 2, "rc"},
		{"pingpong rc", 2, "pipe"},
		{"pingpong rc --size 0", 2, "--size 0"},
		{"pingpong rc --iters 0", 2, "--iters 0"},
		{"pingpong rc --rx-depth 0", 2, "--rx-depth 0"},
		{"pingpong rc --path-mtu 1000", 2, "--path-mtu"},
		{"pingpong rc --gid-idx 256", 2, "--gid-idx"},
		{"pingpong rc --port 0", 2, "--port: 0: must be 1 to 65535"},
		{"demo --capture " + full, 1, "remove it, or use another name"},
	} {
		code, stdout, stderr := runCommand(t, test.args)
		if code != test.code || stdout != "" || !strings.HasPrefix(stderr, "softrnic: ") ||
			strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: exit code %d, want %d; stdout %q; stderr %q, want one line with %q",
				test.args, code, test.code, stdout, stderr, test.want)
		}
	}
	if b, err := os.ReadFile(full); string(b) != "precious" {
		t.Errorf("the file that was there has %q, %v", b, err)
	}
}

// full is a standard output on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestFullDisk: a command fails if its output cannot be written.
func TestFullDisk(t *testing.T) {
	for _, args := range []string{"demo --size 8 --time 1ms", "perf write bw --loopback --iters 10", "conform --list"} {
		var errs clitest.Output
		code := runCommandLine(t.Context(), strings.Fields(args), &cli.Env{Stdout: full{}, Stderr: &errs})
		if code != cli.ExitFailed || errs.String() != "softrnic: no space left on device\n" {
			t.Errorf("%s: exit code %d, stderr %q", args, code, errs.String())
		}
	}
}

// TestCommandAlone: a command reads its arguments and prints its help as if all commands were
// described.
func TestCommandAlone(t *testing.T) {
	for f := range reflect.TypeFor[commands]().Fields() {
		name := strings.ToLower(f.Name)
		for _, args := range [][]string{{name, "--help"}, {name, "--no-such-flag"}} {
			alone, all := new(bytes.Buffer), new(bytes.Buffer)
			code := arguments.Run(t.Context(), args, &cli.Env{Stdout: alone, Stderr: alone}, grammar(args), overview)
			want := arguments.Run(t.Context(), args, &cli.Env{Stdout: all, Stderr: all}, new(commands), overview)
			if code != want || alone.String() != all.String() {
				t.Errorf("%v: %d\n%swant %d\n%s", args, code, alone, want, all)
			}
		}
	}
}
