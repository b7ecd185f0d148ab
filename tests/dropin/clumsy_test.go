//go:build linux && amd64

package dropin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// compile compiles a program of testdata, and returns its file.
func compile(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(build(t), name)
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/"+name+".c", "-lrdmacm", "-libverbs", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// TestSignals runs testdata/signals.c, which says what it tests; and a program that ends by its own fault ends as any other.
func TestSignals(t *testing.T) {
	program := compile(t, "signals")
	for _, link := range []string{"pipe", "shm:signals"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n, _ := pair(t, 0)
		n.env = append(n.env, "SOFTRNIC_LINK="+link)
		out, err := n.program(ctx, t, program).CombinedOutput()
		t.Logf("%s: %s", link, out)
		if err != nil {
			t.Error(err)
		}
		out, err = n.program(ctx, t, program, "die").CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV {
			t.Errorf("%s: a program with a fault of its own: %v, want SIGSEGV\n%s", link, err, out)
		}
	}
}

// TestClumsy runs testdata/clumsy.c, which says what it tests.
func TestClumsy(t *testing.T) {
	program := compile(t, "clumsy")
	for _, link := range []string{"pipe", "shm:clumsy"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		n, _ := pair(t, 0)
		n.env = append(n.env, "SOFTRNIC_LINK="+link)
		if out, err := n.program(ctx, t, program).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", link, err, out)
		}
	}
}

// TestKilled: a program that is killed in the middle of a transfer leaves nothing behind that harms the next with its address, and no file when that has ended.
// With SOFTRNIC_LONG a hundred are killed.
func TestKilled(t *testing.T) {
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	kills := 5
	if os.Getenv("SOFTRNIC_LONG") != "" {
		kills = 100
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(60+10*kills)*time.Second)
	defer cancel()
	server, client := pair(t, 0)
	for i := range kills {
		freePort++
		args := []string{"-d", "softrnic0", "-x", "1", "-F", "-D", "30", "-p", fmt.Sprint(freePort)}
		s := server.program(ctx, t, "ib_write_bw", args...)
		c := client.program(ctx, t, "ib_write_bw", append(args, "127.0.0.1")...)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Wait() }()
		if err := listens(freePort, ended); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(100+50*(i%10)) * time.Millisecond) // it begins, or is under way
		if err := errors.Join(c.Process.Kill(), s.Process.Kill()); err != nil {
			t.Error(err)
		}
		_ = c.Wait()
		<-ended
	}
	freePort++
	args := []string{"ib_write_bw", "-d", "softrnic0", "-x", "1", "-F", "-n", "500", "-p", fmt.Sprint(freePort)}
	run(t, server.program(ctx, t, args[0], args[1:]...), client.program(ctx, t, args[0], append(args[1:], "127.0.0.1")...), freePort)
	for _, n := range []*node{server, client} {
		if err := os.Remove(n.counters); err != nil {
			t.Error(err)
		}
	}
	err := filepath.WalkDir(filepath.Dir(server.counters), func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("%s is left", file)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
