package nvme

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// The commands of a host, over both transports in turn, find a target, show it, write a file to it
// and read it, and measure it.
func TestHost(t *testing.T) {
	lan := new(pipe.Switch)
	server := program.Start(t, lan, "nvme serve --addr 10.0.0.1/24 --namespace memory,size=16M,block=4096 --nqn "+nqn)
	server.Await(t, &server.Err, "msg=serving")
	node := 1
	start := func(args string) (code int, stdout, stderr string) {
		node++ // the network's address of each node is different
		transport := []string{"rocev2", "iwarp"}[node%2]
		return program.Run(t.Context(), lan,
			strings.Fields(fmt.Sprintf("nvme %s --addr 10.0.0.%d/24 --transport %s", args, node, transport))...)
	}
	run := func(args string) string {
		t.Helper()
		code, out, stderr := start(args)
		if code != cli.ExitOK {
			t.Fatalf("%s: exits with %d: %s", args, code, stderr)
		}
		return out
	}
	if out := run("discover 10.0.0.1"); !strings.Contains(out, nqn) || !strings.Contains(out, "10.0.0.1:4420") {
		t.Errorf("discover:\n%s", out)
	}
	code, _, stderr := start("discover 10.0.0.1 --fault cm:reason=28=REJECTED")
	if code == cli.ExitOK || !strings.Contains(stderr, "REJECTED") {
		t.Errorf("discover with a fault: exit code %d: %s", code, stderr)
	}
	var list []entry
	if err := json.Unmarshal([]byte(run("discover 10.0.0.1:4420 --json")), &list); err != nil || len(list) != 1 || list[0].NQN != nqn {
		t.Errorf("discover: %+v, %v", list, err)
	}
	if out := run("identify 10.0.0.1"); !strings.Contains(out, "SoftRNIC") || !strings.Contains(out, "16777216 bytes in blocks of 4096") {
		t.Errorf("identify:\n%s", out)
	}
	var id controller
	if err := json.Unmarshal([]byte(run("identify 10.0.0.1 --json --nqn "+nqn)), &id); err != nil || len(id.Namespaces) != 1 ||
		id.Namespaces[0].Size != 16<<20 {
		t.Errorf("identify: %+v, %v", id, err)
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	want := make([]byte, 9<<20+1000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	if err := os.WriteFile(in, want, 0o600); err != nil {
		t.Fatal(err)
	}
	run("write 10.0.0.1 " + in + " --offset 1M")
	run("read 10.0.0.1 " + out + " --offset 1M --size 9438184")
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, want %d: %v", len(got), len(want), err)
	}
	if got := run("read 10.0.0.1 --offset 10M --size 1K"); got != string(want[9<<20:][:1000])+strings.Repeat("\x00", 24) {
		t.Error("stdout gets something else")
	}
	for _, op := range []string{"randread", "read", "randwrite", "write"} {
		var r result
		if err := json.Unmarshal([]byte(run("bench 10.0.0.1 --json --duration 50ms --queues 2 --depth 8 --op "+op)), &r); err != nil ||
			r.Commands == 0 || r.IOPS <= 0 || r.Latency["p50"] <= 0 || r.Depth != 8 || r.Op != op {
			t.Errorf("bench: %+v, %v", r, err)
		}
	}
	if out := run("bench 10.0.0.1 --duration 50ms --bs 64K"); !strings.Contains(out, "IOPS") {
		t.Errorf("bench:\n%s", out)
	}
	for args, want := range map[string]string{
		"write 10.0.0.1 " + in + " --offset 8M":   "the namespace has 8388608 from --offset on",
		"read 10.0.0.1 --nsid 7":                  "invalid namespace",
		"read 10.0.0.1 --offset 512":              "multiples of the block size",
		"identify 10.0.0.1 --nqn " + nqn + "2":    "connect: invalid parameters",
		"bench 10.0.0.1 --bs 512":                 "--bs 512",
		"bench 10.0.0.1 --depth 0":                "--depth 0",
		"discover 10.0.0.1 --host-nqn x":          "must begin with nqn.",
		"write 10.0.0.1 " + dir + "/none":         "no such file",
		"read 10.0.0.1 " + dir + "/none/none":     "no such file",
		"bench 10.0.0.1 --op erase --duration 1s": "--op",
	} {
		code, _, stderr := start(args)
		if code == cli.ExitOK || !strings.Contains(stderr, want) {
			t.Errorf("%s: exits with %d: %s", args, code, stderr)
		}
	}
	server.Stop()
	if code := server.Wait(t); code != cli.ExitOK {
		t.Errorf("the target exits with %d: %s", code, &server.Err)
	}
}
