package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
)

// replicaState is a replica as the page shows it.
type replicaState struct {
	Name string `json:"name"`
	// Pid is 0 while it does not run.
	Pid int `json:"pid"`
}

// serveControl lets pages see the replicas and kill them: other sites' pages not.
func (d *demo) serveControl(ctx context.Context) error {
	lis, err := net.Listen("tcp", d.control)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /demo/replicas", func(response http.ResponseWriter, _ *http.Request) {
		states := []replicaState{}
		for _, p := range d.replicas {
			states = append(states, replicaState{Name: p.name, Pid: p.pid()})
		}
		response.Header().Set("Cache-Control", "no-store")
		answer(response, http.StatusOK, states)
	})
	mux.HandleFunc("POST /demo/replicas/{name}/kill", func(response http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		at := slices.IndexFunc(d.replicas, func(p *part) bool { return p.name == name })
		if at < 0 {
			refuse(response, http.StatusNotFound, fmt.Errorf("there is no replica %q", name))
			return
		}
		if !d.replicas[at].kill() {
			refuse(response, http.StatusConflict, fmt.Errorf("replica %s does not run", name))
			return
		}
		response.WriteHeader(http.StatusNoContent)
	})
	return serveHTTP(ctx, lis, http.NewCrossOriginProtection().Handler(mux))
}

func (d *demo) isReplica(p *part) bool { return slices.Contains(d.replicas, p) }
