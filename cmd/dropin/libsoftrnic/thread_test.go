//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/program"
	"github.com/softrnic/softrnic/verbs"
)

// TestThreads: threads of C attach, post and poll at once, each on its own QP and all in one
// region, and detach.
func TestThreads(t *testing.T) {
	const n, rounds = 16, 200
	procs := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs) })
	u := newUser(t, roce)
	r := u.register(make([]byte, 2*n*8))
	cqs, qps := make([]cU32, n), make([]cU32, n)
	for i := range qps {
		own := *u
		own.cq = u.newCQ(64)
		cqs[i] = own.cq
		qps[i], _ = own.pair()
	}
	attached := threads.n
	write := func(i int) cInt {
		sge := r.sge(16*i, 8)
		wr := cSendWR{wr_id: cU64(i), sg_list: &sge, num_sge: 1, opcode: cU32(verbs.RDMAWrite), send_flags: cU32(verbs.SendSignaled),
			remote_addr: r.addr(16*i + 8), word1: cU64(r.rkey)}
		err, _ := send(qps[i], &wr, 0)
		return err
	}
	ran := program.Run(n, func(i int) {
		fails(t, "thread 0", srThread(0), 0)
		fails(t, "attach", srThread(1), 0)
		defer func() { fails(t, "detach", srThread(-1), 0) }()
		for round := range rounds {
			r.buf[16*i] = byte(round)
			if err := write(i); err != 0 {
				t.Errorf("thread %d: %v", i, syscall.Errno(err))
				return
			}
			var wc cWC
			for got := cInt(0); got == 0; {
				if err := srPollCQ(cqs[i], 1, &wc, nil, &got, 0, nil, new(cInt)); err != 0 {
					t.Errorf("thread %d: %v", i, syscall.Errno(err))
					return
				}
			}
			if wc.status != 0 || wc.wr_id != cU64(i) || r.buf[16*i+8] != byte(round) {
				t.Errorf("thread %d: %+v, and %d was written, want %d", i, wc, r.buf[16*i+8], byte(round))
				return
			}
			var pd cU32
			fails(t, "allocate PD", srAllocPD(u.context, &pd), 0)
			fails(t, "deallocate PD", srDeallocPD(pd), 0)
		}
	})
	if !ran {
		t.Fatal("the threads could not be created")
	}
	if threads.n != attached {
		t.Errorf("%d threads are attached, want %d", threads.n, attached)
	}
	if now := runtime.GOMAXPROCS(0); now < threads.base+1 || now > threads.base+maxThreads {
		t.Errorf("GOMAXPROCS is %d, with %d of Go and %d threads", now, threads.base, n)
	}
}

// TestSharedCQ: threads of C that poll one CQ get each completion once.
func TestSharedCQ(t *testing.T) {
	const n, each = 8, 200
	u := newUser(t, roce)
	u.cq = u.newCQ(4 * n * each)
	r := u.register(make([]byte, 2*n*8))
	posting := make([]cU32, n)
	for i := range posting {
		posting[i], _ = u.pair()
	}
	got := make([][]int, n) // completions of each QP's requests that a thread has polled
	if !program.Run(n, func(i int) {
		got[i] = make([]int, n)
		var wcs [4]cWC
		for round := 0; round < each; {
			sge := r.sge(16*i, 8)
			wr := cSendWR{wr_id: cU64(i), sg_list: &sge, num_sge: 1, opcode: cU32(verbs.RDMARead), send_flags: cU32(verbs.SendSignaled),
				remote_addr: r.addr(16*i + 8), word1: cU64(r.rkey)}
			switch err, _ := send(posting[i], &wr, 0); syscall.Errno(err) {
			case 0:
				round++
			case syscall.ENOMEM: // the queue is full until the thread that polls has the completions
			default:
				t.Error(syscall.Errno(err))
				return
			}
			var k, none cInt
			fails(t, "poll", srPollCQ(u.cq, 4, &wcs[0], nil, &k, 0, nil, &none), 0)
			for _, wc := range wcs[:k] {
				got[i][wc.wr_id]++
			}
		}
	}) {
		t.Fatal("the threads could not be created")
	}
	counts := make([]int, n)
	for _, g := range got {
		for i, c := range g {
			counts[i] += c
		}
	}
	for i := range counts {
		for counts[i] < each {
			counts[u.poll(u.cq).wr_id]++
		}
		if counts[i] != each {
			t.Errorf("QP %d has %d completions, want %d", i, counts[i], each)
		}
	}
}

// TestFaults: faults of the engine are the engine's although the program has installed a handler
// after it, and faults of the program are the program's. It runs in a process of its own, because a
// handler cannot be removed.
func TestFaults(t *testing.T) {
	const child = "LIBSOFTRNIC_TEST_FAULTS"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFaults$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	u := newUser(t, roce)
	engineFaults := func() {
		t.Helper()
		a, _ := u.pair()
		r := u.register(pages(t, 1, readWrite))
		sge := r.sge(0, 64)
		if err := unix.Munmap(r.buf); err != nil {
			t.Fatal(err)
		}
		faults.checked.Store(0) // as a moment later
		before := program.Caught()
		err, _ := send(a, &cSendWR{sg_list: &sge, num_sge: 1, opcode: cU32(verbs.RDMAWrite), remote_addr: sge.addr}, 0)
		if check(t, err); u.poll(u.cq).status != cU32(verbs.WCLocProtErr) || program.Caught() != before {
			t.Errorf("the program has handled %d faults of the engine", program.Caught()-before)
		}
	}
	page := pages(t, 1, unix.PROT_NONE)
	engineFaults()
	for kind := range program.WithInfo + 1 {
		program.CatchFaults(kind, 0)
		for range 2 {
			engineFaults()
			if !program.Faults(unsafe.Pointer(&page[0])) {
				t.Errorf("kind %d: the program's handler was not called", kind)
			}
		}
	}
	// Three handlers and the default one have four of the engine's eight handlers.
	for mask := 1; mask <= 5; mask++ {
		if faults.warned {
			t.Errorf("there is a warning before handler %d", mask)
		}
		program.CatchFaults(program.Plain, mask)
		checkFaults(0)
	}
	if !faults.warned {
		t.Error("there is no warning about too many handlers")
	}
}
