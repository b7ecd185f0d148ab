//go:build linux

package control

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Serve executes the requests of the client at the other end of stream, until the stream ends. It
// returns the stream's error.
func Serve(stream io.ReadWriter) error {
	s := &server{out: json.NewEncoder(stream), processes: make(map[uint64]*served)}
	s.send(message{Ready: true})
	in := json.NewDecoder(stream)
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			return err
		}
		s.handle(m)
	}
}

type server struct {
	sending sync.Mutex
	out     *json.Encoder

	mu        sync.Mutex
	processes map[uint64]*served
}

type served struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func (s *server) send(m message) {
	s.sending.Lock()
	defer s.sending.Unlock()
	// The stream's end shows in Serve's read.
	_ = s.out.Encode(m)
}

func (s *server) handle(m message) {
	if m.Run != "" {
		s.run(m.ID, m.Run)
		return
	}
	s.mu.Lock()
	p := s.processes[m.ID]
	s.mu.Unlock()
	if p == nil {
		return // it has ended meanwhile
	}
	// A process that does not read its input delays the others: the tests' inputs are small.
	if len(m.In) > 0 {
		_, _ = p.stdin.Write(m.In)
	}
	if m.InEnd {
		_ = p.stdin.Close()
	}
	if m.Kill {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

func (s *server) run(id uint64, command string) {
	p, output, err := startCommand(command)
	if err != nil {
		s.send(message{ID: id, Out: []byte(err.Error()), Done: true, Code: 127})
		return
	}
	s.mu.Lock()
	s.processes[id] = p
	s.mu.Unlock()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		s.copy(id, output)
	}()
	go func() {
		_ = p.cmd.Wait()
		s.mu.Lock()
		delete(s.processes, id)
		s.mu.Unlock()
		// A background child may keep the output open: wait only for the data in it.
		_ = output.SetReadDeadline(time.Now())
		<-copied
		s.send(message{ID: id, Done: true, Code: exitCode(p.cmd)})
	}()
}

// startCommand starts a command in its own process group.
func startCommand(command string) (p *served, output *os.File, err error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	output, end, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer end.Close()
	cmd.Stdout, cmd.Stderr = end, end
	if err := cmd.Start(); err != nil {
		_ = output.Close()
		return nil, nil, err
	}
	return &served{cmd, stdin}, output, nil
}

// copy sends and closes a process's output: up to its end, or all available data at the read
// deadline.
func (s *server) copy(id uint64, output *os.File) {
	defer output.Close()
	b := make([]byte, 32<<10)
	for read := output.Read; ; {
		n, err := read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			read = func(b []byte) (int, error) { return readAvailable(output, b) }
			continue
		}
		if n > 0 {
			s.send(message{ID: id, Out: b[:n]})
		}
		if err != nil {
			return
		}
	}
}

// readAvailable reads the available data, and removes the read deadline. An error means that there
// is none.
func readAvailable(f *os.File, b []byte) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	if e := conn.Read(func(fd uintptr) bool {
		n, err = syscall.Read(int(fd), b)
		return true
	}); e != nil {
		return 0, e
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func exitCode(cmd *exec.Cmd) int {
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
