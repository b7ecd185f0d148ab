//go:build linux

package control

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Serve runs what the client at the other end of stream asks for, until the stream ends; that is its error.
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
	// A process that does not read what it is sent holds up the others: the tests' inputs are small.
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
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output := &output{server: s, id: id}
	cmd.Stdout, cmd.Stderr = output, output
	// A background child that keeps the output open does not keep its parent's end from being told.
	cmd.WaitDelay = 200 * time.Millisecond
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.send(message{ID: id, Out: []byte(err.Error()), Done: true, Code: 127})
		return
	}
	s.mu.Lock()
	s.processes[id] = &served{cmd, stdin}
	s.mu.Unlock()
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		delete(s.processes, id)
		s.mu.Unlock()
		s.send(message{ID: id, Done: true, Code: exitCode(cmd, err)})
	}()
}

func exitCode(cmd *exec.Cmd, err error) int {
	if cmd.ProcessState == nil {
		return 127
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	if err != nil && status.ExitStatus() == 0 && !errors.Is(err, exec.ErrWaitDelay) {
		return 127
	}
	return status.ExitStatus()
}

// output sends what it is given to the client.
type output struct {
	server *server
	id     uint64
}

func (o *output) Write(p []byte) (int, error) {
	o.server.send(message{ID: o.id, Out: p})
	return len(p), nil
}
