package ethswitch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/pingpong"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/rping"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/serve"
)

// program has the commands that these tests run.
var program clitest.Program = func() any {
	return &struct {
		Switch   Command          `cmd:""`
		Serve    serve.Command    `cmd:""`
		Rping    rping.Command    `cmd:""`
		Pingpong pingpong.Command `cmd:""`
	}{}
}

// TestSwitchBetweenNodes: RDMA over both protocols between two nodes on the switch.
func TestSwitchBetweenNodes(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "lan")
	sw := program.Start(t, nil, "switch stream:"+path+",listen")
	sw.Await(t, &sw.Err, "listening")
	on := " --link stream:" + path + " --mtu 4200"
	server := program.Start(t, nil, "serve --path-mtu 4096 --addr 10.0.0.9/24"+on)
	server.Await(t, &server.Err, "serving")
	for _, args := range []string{
		"rping -c -C 10 --addr 10.0.0.8/24 -a",
		"rping -c -C 10 --transport iwarp --addr 10.0.0.8/24 -a",
		"pingpong rc --path-mtu 4096 --size 65536 -n 100 --addr 10.0.0.8/24",
	} {
		args = args + " 10.0.0.9" + on
		if code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields(args)...); code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	server.Stop()
	if code := server.Wait(t); code != 0 {
		t.Errorf("serve ends with %d: %s", code, &server.Err)
	}
	sw.Await(t, &sw.Err, "removed")
	sw.Stop()
	if code := sw.Wait(t); code != 0 {
		t.Errorf("the switch ends with %d: %s", code, &sw.Err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
