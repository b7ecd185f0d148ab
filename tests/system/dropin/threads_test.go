//go:build linux && amd64

package dropin

import (
	"context"
	"debug/elf"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// stressed are the links for testdata/stress.c, with the device's address. Over a pipe a poll never
// enters the engine; over sockets it does, and sleeps occasionally.
var stressed = []struct{ name, link, addr string }{
	{"pipe", "pipe", "10.9.0.1"}, {"shared memory", "shm:stress", "10.9.0.1"}, {"sockets", "kernel:lo", "127.18.9.1"},
}

// seedOf returns the seed of a test: SOFTRNIC_SEED, or a random one, which is logged.
func seedOf(t *testing.T) int {
	t.Helper()
	seed := rand.IntN(1 << 20)
	if s := os.Getenv("SOFTRNIC_SEED"); s != "" {
		var err error
		if seed, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SOFTRNIC_SEED=%d", seed)
	return seed
}

// count returns a number for the system run or for the long run.
func count(system, long int) string { return strconv.Itoa(stacktest.Size(system, system, long)) }

// stress runs testdata/stress.c over each link.
func stress(t *testing.T, args ...string) {
	t.Helper()
	program := compile(t, "stress")
	for _, l := range stressed {
		t.Run(l.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			n, _ := endpoints{link: l.link, server: l.addr + "/24"}.pair(t)
			cmd := n.program(ctx, t, program, append([]string{l.addr, strconv.Itoa(seedOf(t))}, args...)...)
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCancelled: threads that are cancelled in any call leave no locks and leak no memory, and
// other threads lose no events.
func TestCancelled(t *testing.T) {
	gate.System(t)
	stress(t, "cancel", count(300, 10000))
}

// cancels are the cancellation points (pthreads(7)) that the libraries of C call. Each call holds
// no lock and loses nothing, or runs with cancellation disabled. In librdmacm.so.1, dlopen is
// called by the cleanup handlers of a thread that is cancelled already.
var cancels = map[string]string{
	"libibverbs.so.1": "close dlopen fclose fopen fprintf fread nanosleep open " +
		"pthread_cond_wait pthread_join read sem_clockwait sem_wait write",
	"librdmacm.so.1": "close dlopen getaddrinfo poll pthread_cond_wait read sleep write",
}

// TestCancellationPoints: a new cancellation point in a library makes this test fail, so that its
// place is checked.
func TestCancellationPoints(t *testing.T) {
	gate.System(t)
	points := strings.Fields(`accept accept4 aio_suspend clock_nanosleep close connect creat fclose fcntl64 fdatasync fgets fflush fopen fopen64 fprintf
		fputc fputs fread fscanf fsync fwrite getaddrinfo getline getnameinfo lockf mq_receive mq_send msgrcv msgsnd msync nanosleep open open64 openat
		opendir pause perror poll ppoll pread preadv preadv2 printf pselect pthread_clockjoin_np pthread_cond_clockwait pthread_cond_timedwait
		pthread_cond_wait pthread_join pthread_testcancel pthread_timedjoin_np putc puts pwrite pwritev pwritev2 read readdir readv recv recvfrom
		recvmsg recvmmsg select sem_clockwait sem_timedwait sem_wait send sendmsg sendmmsg sendto sigsuspend sigtimedwait sigwait sigwaitinfo sleep
		splice syslog system tcdrain usleep vfprintf wait wait3 wait4 waitid waitpid write writev dlopen dlclose`)
	for lib, want := range cancels {
		f, err := elf.Open(filepath.Join(build(t), lib))
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := f.ImportedSymbols()
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			if slices.Contains(points, s.Name) && !slices.Contains(strings.Fields(want), s.Name) {
				t.Errorf("%s calls %s, where a thread may be cancelled", lib, s.Name)
			}
		}
	}
}

// TestForked: for a child of a process with threads in any call, the process's objects are errors.
// A child that opens a device gets one. No call hangs.
func TestForked(t *testing.T) {
	gate.System(t)
	stress(t, "fork", count(60, 3400)) // some 10,000 over the three links
}

// ofChildren are the links for testdata/forked.c: one with an address for each process, and one
// with an address for all.
func ofChildren(t *testing.T) []endpoints {
	return []endpoints{
		{link: "shm:forked"},
		{link: "kernel:lo", server: "127.18.10.1", env: []string{"SOFTRNIC_SHARED=1", "SOFTRNIC_COMMAND=" + command(t)}},
	}
}

// TestChildren runs testdata/forked.c over each of its links.
func TestChildren(t *testing.T) {
	gate.System(t)
	program := compile(t, "forked")
	for _, l := range ofChildren(t) {
		for _, what := range []string{"objects", "prefork"} {
			t.Run(l.name()+" "+what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				n, _ := l.pair(t)
				if out, err := n.program(ctx, t, program, what, count(4, 8)).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// TestChildWithoutEngine: if the file of the engine has been removed since its process was started,
// a child of that process has no device, and says why.
func TestChildWithoutEngine(t *testing.T) {
	gate.System(t)
	program := compile(t, "forked")
	n, _ := endpoints{link: "pipe", server: "10.9.0.1/24"}.pair(t)
	libs := filepath.Join(filepath.Dir(n.counters), "lib")
	for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1", "libsoftrnic.so"} {
		lib, err := os.ReadFile(filepath.Join(build(t), name))
		if err == nil {
			err = errors.Join(os.MkdirAll(libs, 0o777), os.Chmod(libs, 0o777), os.WriteFile(filepath.Join(libs, name), lib, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := n.program(t.Context(), t, program, "missing", filepath.Join(libs, "libsoftrnic.so"))
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libs)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "this child of a process with devices has none") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInterrupted: signal handlers without their own stack interrupt any call. Signals that the
// program has blocked stay blocked, and Go's threads take none.
func TestInterrupted(t *testing.T) {
	gate.System(t)
	stress(t, "signal", count(3, 300))
}

// TestFirstInterrupted: such handlers interrupt the first call of a thread, when its stack in Go is
// small, and the program changes its user meanwhile.
func TestFirstInterrupted(t *testing.T) {
	gate.System(t)
	stress(t, "first", count(100, 1000))
}

// TestCallsAtOnce: all calls, from many threads.
func TestCallsAtOnce(t *testing.T) {
	gate.System(t)
	stress(t, "run", count(3, 300))
}

// TestDestroyedTwice runs testdata/twice.c, which describes its checks.
func TestDestroyedTwice(t *testing.T) {
	gate.System(t)
	program := compile(t, "twice")
	n, _ := endpoints{link: "pipe", server: "10.9.0.1/24"}.pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if out, err := n.program(ctx, t, program, "10.9.0.1", count(200, 10000)).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestExitAtOnce: a process with threads in any call exits soon and with its status. So does one
// whose signal handler calls exit during a call or malloc: the process then waits 2 s for the
// engine. Otherwise it waits up to 12 s, of which the engine gives peers 10. Without the shorter
// limit, four in ten processes waited for 12 s over sockets, whose calls enter the engine most
// often.
func TestExitAtOnce(t *testing.T) {
	gate.System(t)
	for _, test := range []struct {
		how   string
		link  int // index in stressed
		long  int // processes in the long run
		limit time.Duration
	}{{"exit", 1, 1000, 15 * time.Second}, {"exit-in-call", 2, 300, 12 * time.Second}, {"exit-in-malloc", 0, 300, 12 * time.Second}} {
		t.Run(test.how, func(t *testing.T) {
			ends(t, test.how, test.link, 8, test.long, func(t *testing.T, cmd *exec.Cmd, r *rand.Rand) {
				began := time.Now()
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if took := time.Since(began); !errors.As(err, &exit) || exit.ExitCode() != 7 || took > test.limit {
					t.Errorf("%v, want exit status 7, after %v\n%s", err, took, out)
				}
			})
		})
	}
}

// TestKilledAtOnce: a process that is killed in any call does not affect the next process with its
// address.
func TestKilledAtOnce(t *testing.T) {
	gate.System(t)
	ends(t, "exit", 1, 8, 1000, func(t *testing.T, cmd *exec.Cmd, r *rand.Rand) {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		_ = cmd.Wait()
	})
}

// ends calls f with many processes, one after the other, over a link of stressed. Each ends in a
// way of testdata/stress.c. Then another one works, and leaves no file.
func ends(t *testing.T, how string, link, system, long int, f func(t *testing.T, cmd *exec.Cmd, r *rand.Rand)) {
	t.Helper()
	program := compile(t, "stress")
	l := stressed[link]
	n, _ := endpoints{link: l.link, server: l.addr + "/24"}.pair(t)
	dir := filepath.Dir(n.counters)
	seed := seedOf(t)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	command := func(args ...string) (*exec.Cmd, func()) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		return n.program(ctx, t, program, append([]string{l.addr, strconv.Itoa(seed)}, args...)...), cancel
	}
	for range stacktest.Size(system, system, long) {
		seed++
		cmd, cancel := command(how)
		f(t, cmd, r)
		cancel()
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
	cmd, cancel := command("run", "1")
	defer cancel()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the next: %v\n%s", err, out)
	}
	for file := range filesIn(t, dir) {
		if file != n.counters {
			t.Errorf("%s is left", file)
		}
	}
}

// TestSanitized runs testdata/stress.c, twice.c, gpu.c and forked.c with the libraries of C built
// for AddressSanitizer, and the first two with those built for ThreadSanitizer, which ends a
// child of a process with threads when it starts a thread. Both see these libraries and the
// programs, but not the engine, which is Go: go test -race covers it. AddressSanitizer reports the
// stack contents of a cancelled thread as errors, so its stack checks are off.
func TestSanitized(t *testing.T) {
	gate.Long(t)
	var everywhere []endpoints
	for _, l := range stressed {
		everywhere = append(everywhere, endpoints{link: l.link, server: l.addr + "/24"})
	}
	stress := func(how, n string) checked {
		return checked{"stress", how, everywhere, func(t *testing.T, addr string) []string {
			return []string{addr, strconv.Itoa(seedOf(t)), how, n}
		}}
	}
	forked := func(what, n string) checked {
		return checked{"forked", what, ofChildren(t), func(*testing.T, string) []string { return []string{what, n} }}
	}
	run, cancel := stress("run", count(1, 300)), stress("cancel", count(30, 1000))
	twice := checked{"twice", "twice", everywhere, func(_ *testing.T, addr string) []string { return []string{addr, count(30, 1000)} }}
	gpu := checked{"gpu", "gpu", everywhere, func(*testing.T, string) []string { return []string{"ask"} }}
	for _, s := range []struct {
		name, flags string
		what        []checked
	}{
		{"address", "address", []checked{run, twice, gpu, forked("objects", count(1, 8)), forked("prefork", count(4, 8))}},
		{"address, cancelled", "address --param=asan-stack=0", []checked{cancel}},
		{"thread", "thread", []checked{run, twice, cancel}},
	} {
		t.Run(s.name, func(t *testing.T) { sanitized(t, s.flags, s.what) })
	}
}

// checked is a program of testdata that TestSanitized runs over links. args returns its arguments
// for the address of a device.
type checked struct {
	program, name string
	links         []endpoints
	args          func(t *testing.T, addr string) []string
}

// suppressions are false reports of ThreadSanitizer: it does not know that Go has closed a
// descriptor whose number is reused.
const suppressions = "race:descriptors\n"

// sanitizedLibraries builds the libraries of C for a sanitizer, beside the engine.
func sanitizedLibraries(t *testing.T, flags string) (libs string) {
	t.Helper()
	libs = filepath.Join(shared(t), "lib")
	cmd := exec.Command("go", "run", "./cmd/dropin/build", "-engine=false", "-sanitize", flags, "-o", libs)
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(build(t), "libsoftrnic.so"), filepath.Join(libs, "libsoftrnic.so")); err != nil {
		t.Fatal(err)
	}
	return libs
}

// TestSanitizedSockets runs the programs of TestDirectSockets with the library of run --sockets
// built for AddressSanitizer and UndefinedBehaviorSanitizer.
func TestSanitizedSockets(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/bin/python3", "python3")
	const flags = "address,undefined -fno-sanitize-recover=all"
	libs := sanitizedLibraries(t, flags)
	asan, err := exec.Command("gcc", "-print-file-name=libasan.so").Output()
	if err != nil {
		t.Fatal(err)
	}
	// The sanitizer's library has to come first, also before that of run --sockets. In the shell it
	// does not, which the sanitizer would refuse.
	how := []string{
		"env", "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0", command(t), "run", "--libs", libs, "--sockets", "--sockets-direct",
		"--sockets-wait", "20s", "--", "/bin/sh", "-c", `LD_PRELOAD=` + strings.TrimSpace(string(asan)) + `:$LD_PRELOAD exec "$@"`, "sh",
	}
	for _, file := range []string{"direct_usual.py", "direct_corners.py"} {
		t.Run(file, func(t *testing.T) { runDirect(t, file, 7585, how) })
	}
}

func sanitized(t *testing.T, flags string, what []checked) {
	libs := sanitizedLibraries(t, flags)
	suppressed := filepath.Join(libs, "suppressions")
	if err := os.WriteFile(suppressed, []byte(suppressions), 0o644); err != nil {
		t.Fatal(err)
	}
	libcuda := filepath.Join(libs, "libcuda.so.1")
	if out, err := exec.Command("gcc", "-O1", "-g", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", libcuda, "testdata/libcuda.c",
		"-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for _, w := range what {
		program := filepath.Join(libs, w.program)
		args := append([]string{"-O1", "-g", "-fno-omit-frame-pointer", "-fexceptions", "-rdynamic"},
			strings.Fields("-fsanitize="+flags)...)
		args = append(args, "-o", program, "testdata/"+w.program+".c", "-lrdmacm", "-libverbs", "-lpthread")
		if w.program == "gpu" {
			args = append(args, libcuda)
		}
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		for _, l := range w.links {
			t.Run(l.link+" "+w.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				n, _ := l.pair(t)
				addr, _, _ := strings.Cut(l.server, "/")
				cmd := n.program(ctx, t, program, w.args(t, addr)...)
				cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libs, "ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0",
					"TSAN_OPTIONS=history_size=4:suppressions="+suppressed)
				out, err := cmd.CombinedOutput()
				if err != nil || strings.Contains(string(out), "WARNING: ThreadSanitizer") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}
