// Package link is what the clients of HTTP engines have in common: endpoints,
// sessions that keep many requests in flight, and connections that tell when the
// server at the other end may be another one than before.
//
// A server that restarts closes its connections. One that comes back with other
// layers or weights answers as if nothing had been: whoever asks it through a
// Client learns of it by an error before the next answer, and can look at it
// anew.
//
// # Concurrency
//
// All methods may be called by many goroutines.
package link

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"eaglebatch/extract/backend"
)

// Client is an HTTP client of one server. It dials as often as it needs to
// while a connection is there; once the last one has gone, requests fail with
// backend.ErrReconnect. A server that has not kept a connection yet closes each
// after its answer, and is given a moment in which no other can take its place.
type Client struct {
	http.Client
	tr   *http.Transport
	gone time.Duration // without a connection, after which it may be another server

	mu    sync.Mutex
	live  int
	last  time.Time // when the last connection went; zero: there was none
	keeps bool      // a connection gave more than one answer
}

// restart is shorter than any server needs to end and start again.
const restart = time.Second

// New returns a client that keeps up to so many connections.
func New(connections int) *Client {
	c := &Client{gone: restart}
	c.tr = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         c.dial,
		IdleConnTimeout:     4 * time.Second, // servers close idle connections after 5
		MaxIdleConnsPerHost: connections,
		DisableCompression:  true,
	}
	c.Transport = c.tr
	return c
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.tr.CloseIdleConnections() }

var errBroke = errors.New("the connection broke before the answer, and no other is left")

// Do sends a request as http.Client does. backend.ErrReconnect says that the last
// connection had gone before the request came: one that breaks under a request is
// another failure.
func (c *Client) Do(rq *http.Request) (*http.Response, error) {
	var sent, again atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { sent.Store(true); again.Store(i.Reused) }}
	rs, err := c.Client.Do(rq.WithContext(httptrace.WithClientTrace(rq.Context(), trace)))
	switch {
	case err != nil && sent.Load() && errors.Is(err, backend.ErrReconnect):
		return nil, errBroke
	case err == nil && again.Load():
		c.mu.Lock()
		c.keeps = true
		c.mu.Unlock()
	}
	return rs, err
}

func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	again := c.live == 0 && !c.last.IsZero() && (c.keeps || time.Since(c.last) > c.gone)
	c.mu.Unlock()
	if again {
		return nil, backend.ErrReconnect
	}
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 15 * time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.live++
	c.mu.Unlock()
	return &counted{Conn: conn, c: c}, nil
}

// counted tells its client when it is closed.
type counted struct {
	net.Conn
	c    *Client
	once sync.Once
}

func (n *counted) Close() error {
	n.once.Do(func() {
		n.c.mu.Lock()
		n.c.live--
		n.c.last = time.Now()
		n.c.mu.Unlock()
	})
	return n.Conn.Close()
}

// Severed reports whether err, of a request, means that another server may
// answer the next one: its connection broke, or a proxy lost its server.
func Severed(err error) bool {
	var se *StatusError
	var again *againError
	switch {
	case err == nil, errors.As(err, &again), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return false
	case errors.As(err, &se):
		return se.Code >= http.StatusBadGateway && se.Code <= http.StatusGatewayTimeout
	}
	return true
}
