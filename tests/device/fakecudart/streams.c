/*
 * Streams, events, graphs.
 */
#include "tests/device/fakecudart/fakecudart.h"

static mp_rt_error create(mp_rt_stream *stream, bool blocking)
{
    mp_cu_stream made = NULL;
    mp_rt_error error = rt.cu.stream_create(&made, MP_CU_STREAM_NON_BLOCKING, 0);
    unsigned s = 0;

    if (error != MP_RT_SUCCESS)
        return error;
    pthread_mutex_lock(&rt.lock);
    while (s < RT_STREAMS_MAX && rt.streams[s].stream != NULL)
        s++;
    if (s < RT_STREAMS_MAX)
        rt.streams[s] = (struct rt_stream){ made, blocking, rt_device() };
    pthread_mutex_unlock(&rt.lock);
    if (s == RT_STREAMS_MAX)
        return MP_RT_NO_MEMORY;
    *stream = made;
    return MP_RT_SUCCESS;
}

RT_EXPORT mp_rt_error cudaStreamCreateWithPriority(mp_rt_stream *stream, unsigned flags,
                                                   int priority)
{
    (void)priority;
    RT_BEGIN();
    return rt_end(create(stream, flags == 0));
}

RT_EXPORT mp_rt_error cudaStreamCreateWithFlags(mp_rt_stream *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

RT_EXPORT mp_rt_error cudaStreamCreate(mp_rt_stream *stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

/* The real one lets what is queued end by itself. */
RT_EXPORT mp_rt_error cudaStreamDestroy(mp_rt_stream stream)
{
    mp_rt_error error;

    RT_BEGIN();
    pthread_mutex_lock(&rt.lock);
    for (unsigned s = 0; s < RT_STREAMS_MAX; s++) {
        if (rt.streams[s].stream == stream)
            rt.streams[s].stream = NULL;
    }
    pthread_mutex_unlock(&rt.lock);
    error = rt.cu.stream_synchronize(stream);
    if (error == MP_RT_SUCCESS)
        error = rt.cu.stream_destroy(stream);
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaStreamSynchronize(mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    return rt_end(error != MP_RT_SUCCESS ? error : rt.cu.stream_synchronize(s));
}

RT_EXPORT mp_rt_error cudaStreamQuery(mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    return rt_end(error != MP_RT_SUCCESS ? error : rt.cu.stream_query(s));
}

RT_EXPORT mp_rt_error cudaStreamWaitEvent(mp_rt_stream stream, mp_rt_event event, unsigned flags)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    return rt_end(error != MP_RT_SUCCESS ? error : rt.cu.stream_wait_event(s, event, flags));
}

RT_EXPORT mp_rt_error cudaEventCreateWithFlags(mp_rt_event *event, unsigned flags)
{
    mp_cu_event made = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt.cu.event_create(&made, flags);
    if (error == MP_RT_SUCCESS)
        *event = made;
    return rt_end(error);
}

RT_EXPORT mp_rt_error cudaEventCreate(mp_rt_event *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

RT_EXPORT mp_rt_error cudaEventDestroy(mp_rt_event event)
{
    RT_BEGIN();
    return rt_end(rt.cu.event_destroy(event));
}

RT_EXPORT mp_rt_error cudaEventRecord(mp_rt_event event, mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    return rt_end(error != MP_RT_SUCCESS ? error : rt.cu.event_record(event, s));
}

RT_EXPORT mp_rt_error cudaEventQuery(mp_rt_event event)
{
    RT_BEGIN();
    return rt_end(rt.cu.event_query(event));
}

RT_EXPORT mp_rt_error cudaEventSynchronize(mp_rt_event event)
{
    RT_BEGIN();
    return rt_end(rt.cu.event_synchronize(event));
}

RT_EXPORT mp_rt_error cudaEventElapsedTime(float *ms, mp_rt_event start, mp_rt_event end)
{
    RT_BEGIN();
    return rt_end(rt.cu.event_elapsed(ms, start, end));
}

/* ---- graphs */

RT_EXPORT mp_rt_error cudaStreamBeginCapture(mp_rt_stream stream, int mode)
{
    RT_BEGIN();
    return rt_end(rt.cu.capture_begin(stream, mode));
}

RT_EXPORT mp_rt_error cudaStreamEndCapture(mp_rt_stream stream, mp_rt_graph *graph)
{
    RT_BEGIN();
    return rt_end(rt.cu.capture_end(stream, (mp_cu_graph *)graph));
}

RT_EXPORT mp_rt_error cudaStreamIsCapturing(mp_rt_stream stream, int *status)
{
    RT_BEGIN();
    return rt_end(rt.cu.capturing(stream, status));
}

RT_EXPORT mp_rt_error cudaGraphInstantiate(mp_rt_exec *exec, mp_rt_graph graph,
                                           unsigned long long flags)
{
    RT_BEGIN();
    return rt_end(rt.cu.graph_instantiate((mp_cu_graph_exec *)exec, graph, flags));
}

/* Nothing here can be updated, which programs have to expect of any graph. */
RT_EXPORT mp_rt_error cudaGraphExecUpdate(mp_rt_exec exec, mp_rt_graph graph, void *result)
{
    (void)exec;
    (void)graph;
    (void)result;
    return rt_end(MP_RT_UPDATE_FAILURE);
}

RT_EXPORT mp_rt_error cudaGraphLaunch(mp_rt_exec exec, mp_rt_stream stream)
{
    mp_cu_stream s = NULL;
    mp_rt_error error;

    RT_BEGIN();
    error = rt_stream(stream, &s);
    return rt_end(error != MP_RT_SUCCESS ? error : rt.cu.graph_launch(exec, s));
}

RT_EXPORT mp_rt_error cudaGraphExecDestroy(mp_rt_exec exec)
{
    RT_BEGIN();
    return rt_end(rt.cu.graph_exec_destroy(exec));
}

RT_EXPORT mp_rt_error cudaGraphDestroy(mp_rt_graph graph)
{
    RT_BEGIN();
    return rt_end(rt.cu.graph_destroy(graph));
}
