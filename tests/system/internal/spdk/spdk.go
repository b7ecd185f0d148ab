// Package spdk runs SPDK's target and hosts of NVMe over Fabrics for tests. Debian has no package
// of them.
package spdk

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

const (
	// NQN is that of the target's subsystem.
	NQN = "nqn.2014-08.org.example:spdk"
	// Disk is the size of the target's namespace in bytes.
	Disk = 64 << 20

	discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"
	piece        = 2 << 20 // bytes that are written with one size of requests
	largest      = 1 << 20 // size of requests
)

// targetConfig is the configuration of nvmf_tgt: a disk in memory.
const targetConfig = `{"subsystems": [
{"subsystem": "bdev", "config": [
  {"method": "bdev_malloc_create", "params": {"name": "disk", "num_blocks": BLOCKS, "block_size": 512}}]},
{"subsystem": "nvmf", "config": [
  {"method": "nvmf_create_transport", "params": {"trtype": "RDMA"}},
  {"method": "nvmf_create_subsystem", "params": {"nqn": "NQN", "allow_any_host": true}},
  {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "NQN", "namespace": {"bdev_name": "disk"}}},
  {"method": "nvmf_subsystem_add_listener", "params": {"nqn": "NQN",
    "listen_address": {"trtype": "RDMA", "adrfam": "IPv4", "traddr": "ADDR", "trsvcid": "4420"}}}]}]}`

// hostConfig is the configuration of spdk_dd, whose disk is a namespace of a target.
const hostConfig = `{"subsystems": [{"subsystem": "bdev", "config": [
{"method": "bdev_nvme_attach_controller", "params": {"name": "nvme", "trtype": "RDMA", "adrfam": "IPv4", "traddr": "ADDR",
  "trsvcid": "4420", "subnqn": "NQN"}},
{"method": "bdev_wait_for_examine"}]}]}`

// Installed are SPDK's programs.
type Installed struct {
	Version string // "SPDK v26.05"
	dir     string
	env     []string
}

// Find returns SPDK's programs: nvmf_tgt, spdk_nvme_identify, spdk_nvme_perf and spdk_dd. The test
// is skipped if SOFTRNIC_SPDK does not name their directory. They find shared libraries where
// SPDK's build leaves them, and in LD_LIBRARY_PATH.
func Find(t testing.TB) *Installed {
	t.Helper()
	dir := os.Getenv("SOFTRNIC_SPDK")
	if dir == "" {
		t.Skip("SOFTRNIC_SPDK does not name a directory with SPDK's programs, of which Debian has no package")
	}
	tree := filepath.Join(dir, "../..")
	libraries := []string{filepath.Join(dir, "../lib"), filepath.Join(tree, "dpdk/build/lib"), filepath.Join(tree, "isa-l/.libs"),
		filepath.Join(tree, "isa-l-crypto/.libs")}
	if more := os.Getenv("LD_LIBRARY_PATH"); more != "" {
		libraries = append(libraries, more)
	}
	s := &Installed{dir: dir, env: []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}}
	cmd := exec.Command(filepath.Join(dir, "nvmf_tgt"), "--version")
	cmd.Env = append(os.Environ(), s.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nvmf_tgt --version: %v\n%s", err, out)
	}
	if s.Version = regexp.MustCompile(`SPDK v\d+\.\d+`).FindString(string(out)); s.Version == "" {
		t.Fatalf("nvmf_tgt --version prints no version:\n%s", out)
	}
	return s
}

// Side is the side of a connection on which SPDK runs.
type Side struct {
	*Installed
	// Run returns a command that runs a program, as softrnic run does.
	Run func(program string, args ...string) *exec.Cmd
	Dir string // the program may write files there
	// Address and NQN are those of the target.
	Address, NQN string
	// IWARP says that the wire protocol is iWARP.
	IWARP bool
	// Slow says that the target may need more than 1 s for a connection, or 0.5 s for a Connect
	// command, as an emulated machine does under load. SPDK's hosts do not wait longer. They are then
	// run again.
	Slow bool
	// With names the other side. Over is the link and the wire protocol, or the peer, as in the table
	// of programs.
	With, Over string
}

// ran records a command line.
func (s *Side) ran(t testing.TB, line string) {
	t.Helper()
	programs.RanOf(t, s.Version, line, s.Over)
}

// command returns a command with one of the programs.
func (s *Side) command(program string, args ...string) *exec.Cmd {
	cmd := s.Run(filepath.Join(s.dir, program), args...)
	cmd.Env = append(cmd.Env, s.env...)
	return cmd
}

// file writes a file with the target's parameters, and returns its name.
func (s *Side) file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(s.Dir, name)
	text = strings.NewReplacer("ADDR", s.Address, "NQN", s.NQN, "BLOCKS", fmt.Sprint(Disk/512)).Replace(text)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Listening is what the target prints when it is ready.
const Listening = "NVMe/RDMA Target Listening on"

// Target returns a command that runs nvmf_tgt until SIGINT.
func (s *Side) Target(t testing.TB) *exec.Cmd {
	t.Helper()
	s.ran(t, "nvmf_tgt --no-huge")
	return s.command("nvmf_tgt", "--no-huge", "-s", "512", "-m", "1", "--disable-cpumask-locks", "-r", filepath.Join(s.Dir, "target.sock"),
		"-c", s.file(t, "target.json", targetConfig))
}

// Until starts a target, waits until it has printed a text, and interrupts it at the end.
func Until(t testing.TB, cmd *exec.Cmd, text string) {
	t.Helper()
	said, ended := proc.Start(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the target: %v", err)
			}
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Errorf("the target: SIGINT did not end it: %v", <-ended)
		}
		if t.Failed() {
			t.Logf("the target:\n%s", said.String())
		}
	})
	if err := said.WaitFor(text, ended); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
}

// late matches what a host prints after it has waited too long: ECANCELED or EADDRNOTAVAIL.
var late = regexp.MustCompile(`Connect command failed, rc -125|RDMA connect error -99`)

// host runs one of the hosts to its end, and returns its output.
func (s *Side) host(t testing.TB, program string, args ...string) string {
	t.Helper()
	for tries := 5; ; tries-- {
		out, err := s.command(program, append([]string{"--no-huge", "-s", "512"}, args...)...).CombinedOutput()
		said := string(out)
		switch {
		case err == nil && !strings.Contains(said, "*ERROR*"):
			return said
		case !s.Slow || tries == 0 || !late.MatchString(said):
			t.Fatalf("%s %s: %v\n%s", program, args, err, out)
		}
	}
}

// Hosts runs the hosts: discovery ten times, I/O of all sizes and depths, and data that is read
// back. It overwrites 24 MiB of namespace 1.
func (s *Side) Hosts(t *testing.T) {
	id := func(nqn string) string {
		return "trtype:RDMA adrfam:IPv4 traddr:" + s.Address + " trsvcid:4420 subnqn:" + nqn
	}
	t.Run("identify", func(t *testing.T) {
		s.ran(t, "spdk_nvme_identify --no-huge, with "+s.With)
		for range 10 {
			if out := s.host(t, "spdk_nvme_identify", "-r", id(discoveryNQN)); !strings.Contains(out, s.NQN) {
				t.Fatalf("the discovery log page lacks the subsystem:\n%s", out)
			}
		}
		if out := s.host(t, "spdk_nvme_identify", "-r", id(s.NQN)); !strings.Contains(out, "Namespace ID:1") {
			t.Fatalf("there is no namespace:\n%s", out)
		}
	})
	t.Run("perf", func(t *testing.T) {
		s.ran(t, fmt.Sprintf("spdk_nvme_perf --no-huge -q 1 to %d, -o 512 to %d, -w randrw, with %s", s.deepest(), largest, s.With))
		for size, depth := 512, 1; size <= largest; size *= 2 {
			for _, depth := range []int{min(depth, s.deepest()), s.deepest()} {
				out := s.host(t, "spdk_nvme_perf", "-q", fmt.Sprint(depth), "-o", fmt.Sprint(size), "-w", "randrw", "-M", "50", "-t", "1",
					"-r", id(s.NQN))
				m := regexp.MustCompile(`(?m)^Total +: +(\d+\.\d+) +(\S+)`).FindStringSubmatch(out)
				if m == nil || m[1] == "0.00" {
					t.Fatalf("no I/O of %d bytes, %d deep:\n%s", size, depth, out)
				}
				kind := ""
				if depth == s.deepest() && (size == 4096 || size == largest) {
					kind = "result: "
				}
				t.Logf("%sspdk_nvme_perf with %s over %s, %d bytes, %d deep: %s IO/s, %s MiB/s", kind, s.With, s.Over, size, depth, m[1], m[2])
			}
			depth = max(depth*2%256, 1)
		}
	})
	t.Run("dd", func(t *testing.T) {
		s.ran(t, fmt.Sprintf("spdk_dd --no-huge --bs 512 to %d, with %s", largest, s.With))
		s.copy(t)
	})
}

// deepest returns the number of commands that a host may have outstanding. SPDK's host sends
// commands before it posts the receive requests of earlier ones again. So with half of its
// queue of 128 or more outstanding, responses arrive without a receive request. iWARP has no RNR
// NAK, and ends the connection.
func (s *Side) deepest() int {
	if s.IWARP {
		return 32
	}
	return 128
}

// copy writes random data to the disk with requests of all sizes, and compares what is there.
func (s *Side) copy(t *testing.T) {
	t.Helper()
	conf := s.file(t, "host.json", hostConfig)
	in, back := filepath.Join(s.Dir, "in"), filepath.Join(s.Dir, "back")
	dd := func(size, depth int, args ...string) {
		t.Helper()
		s.host(t, "spdk_dd", append([]string{"-m", "1", "--disable-cpumask-locks", "-r", filepath.Join(s.Dir, "dd.sock"), "-c", conf, "--aio",
			"--bs", fmt.Sprint(size), "--qd", fmt.Sprint(depth)}, args...)...)
	}
	var all []byte
	depth := 1
	for size := 512; size <= largest; size *= 2 {
		data := make([]byte, piece)
		_, _ = rand.Read(data) // never fails
		if err := os.WriteFile(in, data, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(in, 0o666); err != nil { // spdk_dd opens it for writing as well
			t.Fatal(err)
		}
		dd(size, min(depth, s.deepest()), "--if", in, "--ob", "nvmen1", "--seek", fmt.Sprint(len(all)/size))
		all = append(all, data...)
		depth = max(depth*2%256, 1)
	}
	for _, size := range []int{512, 4096, 128 << 10, largest} {
		dd(size, s.deepest(), "--ib", "nvmen1", "--of", back, "--count", fmt.Sprint(len(all)/size))
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, all) {
			t.Errorf("reads of %d bytes return %d bytes (%v), which differ from the %d that were written", size, len(got), err, len(all))
		}
	}
}
