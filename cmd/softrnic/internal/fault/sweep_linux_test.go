package fault

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRun: how a run of a sweep ended. softrnic run is a script here, which runs the program alone;
// the program is one of the shell, which says that a fault has hit it.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	self := filepath.Join(dir, "softrnic")
	if err := os.WriteFile(self, []byte("#!/bin/sh\nshift 2\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const met, missed = `echo '{"sites":{"reg_mr":2},"injected":1}' >$SOFTRNIC_FAULT_SITES;`,
		`echo '{"sites":{"reg_mr":2}}' >$SOFTRNIC_FAULT_SITES;`
	const long = time.Minute
	for _, c := range []struct {
		name, program string
		limit         time.Duration
		end, detail   string
	}{
		{"noticed", met + "echo one; echo two; echo; exit 3", long, clean, "exit status 3: two"},
		{"forgotten", met + "echo done", long, unnoticed, "done"},
		{"killed", met + "kill -SEGV $$", long, crashed, "segmentation fault"},
		{"killed below softrnic run", met + "exit 134", long, crashed, "aborted"},
		{"not met", missed + "exit 3", long, notReached, ""},
		{"not met and killed", missed + "kill -SEGV $$", long, crashed, "segmentation fault"},
		{"silent", "exit 3", long, clean, "exit status 3"}, // it could not say what has hit it
		{"hung", met + "echo $$; sleep 1000", 3 * time.Second, hung, ""},
		{"hung, and so is what it started", met + "sleep 1000 & wait", 3 * time.Second, hung, ""},
		{"its output is open at its end", met + "sleep 1000 & echo $!", long, unnoticed, ""},
		{"its output is open at its end, with an error", met + "sleep 1000 & echo $!; exit 1", long, clean, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &sweeper{&Command{Args: []string{"sh", "-c", c.program}, Timeout: c.limit}, self, filepath.Join(t.TempDir(), "sites")}
			r, sites := s.run(t.Context(), "reg_mr=ENOMEM")
			if r.end != c.end || !strings.Contains(r.detail, c.detail) || r.rule != "reg_mr=ENOMEM" || r.took <= 0 {
				t.Errorf("%+v, want %s, %s", r, c.end, c.detail)
			}
			if said := strings.Contains(c.program, "sites"); said != (sites != nil) || said && sites.Sites["reg_mr"] != 2 {
				t.Errorf("sites %+v", sites)
			}
			_, last, _ := strings.Cut(r.detail, "exit status 1: ")
			if last == "" {
				last = r.detail
			}
			if pid, err := strconv.Atoi(last); err == nil && !ends(pid) {
				t.Errorf("process %d is left", pid)
			}
		})
	}
}

// ends waits until a process has ended, for some seconds. One that nobody has waited for yet has.
func ends(pid int) bool {
	for range 1000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return false
}

// TestReadSites: of each call there are as many as the process or device with the most has made,
// and faults of all.
func TestReadSites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sites")
	if s := readSites(file); s != nil {
		t.Errorf("without a file, %+v", s)
	}
	for text, want := range map[string]map[string]uint64{
		"": {},
		`{"pid":1,"sites":{"reg_mr":2,"post_send":7},"injected":1}` + "\n" + `{"pid":1,"sites":{"reg_mr":3},"injected":0}` + "\n" +
			`{"pid":2,"sites":{"post_send":1,"wc:opcode=send":4},"injected":2}`: {"reg_mr": 3, "post_send": 7, "wc:opcode=send": 4},
		`{"pid":1}{"sites":`:                  nil, // killed while it wrote
		`{"pid":1,"sites":{"reg_mr":"many"}}`: nil,
	} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		s := readSites(file)
		if (s == nil) != (want == nil) || s != nil && !maps.Equal(s.Sites, want) {
			t.Errorf("%q: %+v, want %v", text, s, want)
		}
		if len(want) == 3 && s.Injected != 3 {
			t.Errorf("%d faults", s.Injected)
		}
	}
}
