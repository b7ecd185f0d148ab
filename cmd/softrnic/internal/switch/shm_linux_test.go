package ethswitch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSharedMemory: a node on a segment in shared memory and one on a stream reach each other
// through the switch.
func TestSharedMemory(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	path := filepath.Join(dir, "lan")
	sw := program.Start(t, nil, "switch shm:lab stream:"+path+",listen --mtu 4200")
	sw.Await(t, &sw.Err, "listening")
	server := program.Start(t, nil, "serve --link shm:lab --addr 10.0.0.9/24")
	server.Await(t, &server.Err, "serving")
	for _, args := range []string{
		"rping -c -C 10 --addr 10.0.0.8/24 --link stream:" + path + " -a 10.0.0.9",
		"rping -c -C 10 --transport iwarp --addr 10.0.0.8/24 --link stream:" + path + " -a 10.0.0.9",
		"pingpong rc --size 65536 -n 100 --addr 10.0.0.8/24 --link stream:" + path + " 10.0.0.9",
		"pingpong rc --size 65536 -n 100 --addr 10.0.0.7/24 --link shm:lab 10.0.0.9",
	} {
		if code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields(args)...); code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	server.Stop()
	if code := server.Wait(t); code != 0 {
		t.Errorf("serve ends with %d: %s", code, &server.Err)
	}
	sw.Stop()
	if code := sw.Wait(t); code != 0 {
		t.Errorf("the switch ends with %d: %s", code, &sw.Err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "softrnic", "shm-lab")); len(left) > 0 || err != nil {
		t.Errorf("left in the segment's directory: %v, %v", left, err)
	}
}
