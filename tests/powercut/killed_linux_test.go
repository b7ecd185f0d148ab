package powercut

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// limit is how long it may take that nothing waits any more.
const limit = 20 * time.Second

// stuckDisk makes a disk with a file system and a file, whose writes get no answer from the moment
// on at which stop is called. pending is called for the first of them.
func stuckDisk(t *testing.T, pending func()) (d *Disk, f *os.File, stop, release func()) {
	t.Helper()
	var stuck atomic.Bool
	released := make(chan struct{})
	var first, last sync.Once
	d = NewDisk(t, 8<<20, func() {
		if stuck.Load() {
			first.Do(pending)
			<-released
		}
	})
	f, err := os.Create(filepath.Join(d.Mount(t), "file"))
	if err != nil {
		t.Fatal(err)
	}
	return d, f, func() { stuck.Store(true) }, func() { last.Do(func() { close(released) }) }
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for until := time.Now().Add(limit); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal(what)
		}
	}
}

// backing returns the file of a loop device.
func backing(device string) string {
	b, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	return string(b)
}

// TestServerKilled: if the process that serves the disk is killed, writes fail.
func TestServerKilled(t *testing.T) {
	pending := make(chan struct{})
	d, f, stop, release := stuckDisk(t, func() { close(pending) })
	defer release()
	stop()
	failed := make(chan error, 1)
	go func() {
		_, _ = f.Write(bytes.Repeat([]byte("data"), 1<<16))
		failed <- f.Sync()
		_ = f.Close()
	}()
	<-pending
	if err := d.server.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("a sync without a disk has succeeded")
		}
	case <-time.After(limit):
		t.Error("a sync waits for a process that was killed")
	}
}

const asVictim = "SOFTRNIC_POWERCUT_VICTIM"

// TestKilled: a test that is killed while it waits for its disk ends, and leaves nothing.
func TestKilled(t *testing.T) {
	if os.Getenv(asVictim) != "" {
		_, f, stop, _ := stuckDisk(t, func() { fmt.Println("pending") })
		stop()
		for range 4 {
			go func() {
				_, _ = f.Write(bytes.Repeat([]byte("data"), 1<<16))
				_ = f.Sync()
			}()
		}
		select {}
	}
	NewDisk(t, 1<<20, nil) // or it skips this test
	temporary := t.TempDir()
	victim := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.v")
	victim.Env = append(os.Environ(), asVictim+"=1", "TMPDIR="+temporary)
	out, err := victim.StdoutPipe()
	if err == nil {
		err = victim.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "pending" {
		t.Log(lines.Text())
	}
	devices := devicesOf(t, temporary)
	if len(devices) != 1 {
		t.Errorf("it has the devices %q", devices)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = victim.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(limit):
		t.Fatal("it waits for its own disk")
	}
	await(t, "its loop device is left", func() bool { return len(devicesOf(t, temporary)) == 0 })
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), temporary) {
		t.Errorf("a mount is left, or %v", err)
	}
}

// devicesOf returns the loop devices of files below a directory.
func devicesOf(t *testing.T, dir string) (devices []string) {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*")
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range all {
		if strings.Contains(backing(device), dir) {
			devices = append(devices, device)
		}
	}
	return devices
}
